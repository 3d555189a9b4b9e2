"""Tells the operator what is going on. Silence is never longer than ten seconds."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

BEAT = 8.0


@dataclass
class Report:
    """Writes a line as each step ends, and a sign of life while it goes on.

    Attributes:
        write: where lines go.
        beat: seconds between signs of life.
        seconds: the title of each step that has ended, and what it took.
    """

    write: Callable[[str], None]
    beat: float = BEAT
    seconds: list[tuple[str, float]] = field(default_factory=list)
    _detail: str = field(default="", init=False)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Report the step that the block carries out."""
        began = time.monotonic()
        done = threading.Event()
        self._detail = ""

        def live() -> None:
            while not done.wait(self.beat):
                detail = f" ({self._detail})" if self._detail else ""
                self.write(f"  … {title}: {time.monotonic() - began:.0f} s{detail}")

        thread = threading.Thread(target=live, daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self.write(f"  ✗ {title} ({time.monotonic() - began:.1f} s)")
            raise
        else:
            self.write(f"  ✓ {title} ({time.monotonic() - began:.1f} s)")
        finally:
            self.seconds.append((title, time.monotonic() - began))
            done.set()
            thread.join()

    def detail(self, text: str) -> None:
        """What the step in progress waits for; shown with the next sign of life."""
        self._detail = text

    def say(self, text: str) -> None:
        """Write a line."""
        self.write(text)
