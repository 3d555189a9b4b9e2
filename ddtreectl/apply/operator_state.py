"""A file of the operator's machine, one for each inventory, that several commands may change."""

import contextlib
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ddtreectl.errors import DdtreectlError
from ddtreectl.facts.output import json_object

VARIABLE = "XDG_STATE_HOME"
PATIENCE = 10.0
PAUSE = 0.02


def state_folder() -> Path:
    """Where ddtreectl keeps what it knows; a relative $XDG_STATE_HOME does not count, as XDG says.

    Source: XDG Base Directory Specification 0.8, "Basics".
    """
    named = os.environ.get(VARIABLE, "")
    base = Path(named) if named.startswith("/") else Path.home() / ".local/state"
    return base / "ddtreectl"


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield
    except OSError as error:
        raise DdtreectlError(
            f"`{path}` cannot be written",
            cause=error.strerror or str(error),
            hint=f"${VARIABLE} names another folder",
        ) from error


def write(path: Path, text: str) -> None:
    """Put a file there as a whole, whoever else writes it at the same time.

    Raises:
        DdtreectlError: it cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with _writing(path):
        try:
            fresh.write_text(text)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)


class OperatorState:
    """What an operator keeps of the hosts of one inventory.

    Args:
        inventory: the inventory file.
        what: what is kept; the beginning of the file's name.
        patience: seconds to wait for another command that changes it.
    """

    def __init__(self, inventory: Path, what: str, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._inventory = str(inventory.resolve())
        name = hashlib.sha256(self._inventory.encode()).hexdigest()[:16]
        self.path = state_folder() / f"{what}-{name}.json"

    def read(self) -> dict[str, object]:
        """What is kept, by host; nothing where there is no file, or none that can be read."""
        try:
            hosts = json_object(self.path.read_text()).get("hosts")
        except (OSError, ValueError):
            return {}
        return hosts if isinstance(hosts, dict) else {}

    def of(self, host: str) -> dict[str, object]:
        """What is kept of one host."""
        found = self.read().get(host)
        return found if isinstance(found, dict) else {}

    @contextlib.contextmanager
    def changed(self) -> Iterator[dict[str, object]]:
        """The content, which is written when the block ends; one writer at a time.

        Raises:
            DdtreectlError: it cannot be written, or another command does not let go of it.
        """
        with _writing(self.path), self.path.with_suffix(".lock").open("a+") as lock:
            self._take(lock)
            content = self.read()
            yield content
            text = json.dumps({"inventory": self._inventory, "hosts": content}, indent=1)
            write(self.path, text + "\n")

    def _take(self, lock: TextIO) -> None:
        """Lock the file; it says who has it, for others that wait."""
        end = time.monotonic() + self._patience
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise self._held(lock) from None
                time.sleep(PAUSE)
            else:
                lock.truncate(0)
                lock.write(f"{os.getpid()}\n")
                lock.flush()
                return

    def _held(self, lock: TextIO) -> DdtreectlError:
        lock.seek(0)
        pid = lock.read(20).strip()
        return DdtreectlError(
            f"`{self.path}` is locked by another ddtreectl on this machine",
            cause=f"process {pid} has had it for more than {self._patience:g} s"
            if pid.isdecimal()
            else f"it has been for more than {self._patience:g} s",
            hint=f"is it stopped, or stuck? `ps -fp {pid}`; nothing else is lost if it is ended"
            if pid.isdecimal()
            else f"`fuser -v {self.path.with_suffix('.lock')}` says by whom",
        )
