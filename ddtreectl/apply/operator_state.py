"""A file of the operator's machine, one for each inventory, that several commands may change."""

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from ddtreectl.errors import DdtreectlError
from ddtreectl.facts.output import json_object

VARIABLE = "XDG_STATE_HOME"


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
    """

    def __init__(self, inventory: Path, what: str) -> None:
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
            DdtreectlError: it cannot be written.
        """
        with _writing(self.path), self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self.read()
            yield content
            text = json.dumps({"inventory": self._inventory, "hosts": content}, indent=1)
            write(self.path, text + "\n")
