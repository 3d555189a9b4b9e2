"""Tells the operator what is going on. Silence is never longer than ten seconds."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

BEAT = 8.0
LINE_EVERY = 1.0
TENTHS = 10
MIB = 1 << 20


class Bar(Protocol):
    """Shows how far a step has come, in a place of its own on the screen."""

    @property
    def shown(self) -> bool:
        """Whether it is on the screen, where it moves by itself."""
        ...

    def show(self, title: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes of the step are there."""
        ...

    def close(self) -> None:
        """Leave the screen to lines of text; what is shown next opens it again."""
        ...


@dataclass
class Report:
    """Writes a line as each step ends, and a sign of life while it goes on.

    Attributes:
        write: where lines go.
        bar: shows how much of something is done; without one, lines do.
        beat: seconds between signs of life.
        line_every: seconds between two lines that say how much is done, at least.
        seconds: the title of each step that has ended, and what it took.
    """

    write: Callable[[str], None]
    bar: Bar | None = None
    beat: float = BEAT
    line_every: float = LINE_EVERY
    seconds: list[tuple[str, float]] = field(default_factory=list)
    _title: str = field(default="", init=False)
    _detail: str = field(default="", init=False)
    _tenths: int = field(default=0, init=False)
    _said: float = field(default=0.0, init=False)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Report the step that the block carries out."""
        began = time.monotonic()
        done = threading.Event()
        self._title, self._detail = title, ""
        self._tenths, self._said = 0, began

        def live() -> None:
            while not done.wait(self.beat):
                if self.bar is not None and self.bar.shown:
                    continue
                detail = f" ({self._detail})" if self._detail else ""
                self._write(f"  … {title}: {time.monotonic() - began:.0f} s{detail}")

        thread = threading.Thread(target=live, daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self._write(f"  ✗ {title} ({time.monotonic() - began:.1f} s)")
            raise
        else:
            self._write(f"  ✓ {title} ({time.monotonic() - began:.1f} s)")
        finally:
            self.seconds.append((title, time.monotonic() - began))
            done.set()
            thread.join()

    def detail(self, text: str) -> None:
        """What the step in progress waits for; shown with the next sign of life."""
        self._detail = text

    def amount(self, done: int, total: int) -> None:
        """How many bytes of how many are there: a bar, or a line for each tenth."""
        percent = 100 * done // max(total, 1)
        self.detail(f"{done / MIB:.0f} of {total / MIB:.0f} MiB, {percent} %")
        if self.bar is not None:
            self.bar.show(self._title, done, total)
            return
        tenths = TENTHS * done // max(total, 1)
        if tenths > self._tenths and time.monotonic() - self._said >= self.line_every:
            self._tenths, self._said = tenths, time.monotonic()
            self._write(f"  … {self._title}: {self._detail}")

    def say(self, text: str) -> None:
        """Write a line."""
        self._write(text)

    def _write(self, line: str) -> None:
        if self.bar is not None:
            self.bar.close()
        self.write(line)
