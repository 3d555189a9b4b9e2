"""A bar that says how far a transfer has come, for people at a terminal."""

import threading

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ddtreectl.cli.terminal import printable


class ProgressBar:
    """The bar of one step at a time; it vanishes when lines of text are to be written.

    Args:
        console: of a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._shown: tuple[Progress, TaskID] | None = None

    @property
    def shown(self) -> bool:
        """Whether it is on the screen."""
        return self._shown is not None

    def show(self, title: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes of a step are there."""
        with self._lock:
            if self._shown is None:
                bar = Progress(
                    TextColumn("  {task.description}"),
                    BarColumn(),
                    TaskProgressColumn(),
                    DownloadColumn(binary_units=True),
                    TransferSpeedColumn(),
                    TimeRemainingColumn(),
                    console=self._console,
                    transient=True,
                )
                # What is there already was not sent in this time.
                self._shown = bar, bar.add_task(escape(printable(title)), completed=done)
                bar.start()
            bar, task = self._shown
            bar.update(task, completed=done, total=total)

    def close(self) -> None:
        """Take it off the screen."""
        with self._lock:
            if self._shown is not None:
                self._shown[0].stop()
                self._shown = None
