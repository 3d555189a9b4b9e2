"""Cordons of hosts that could not be reached: the operator keeps them until they can.

They lie in the operator's state folder, in one file for each inventory file.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ddtreectl.errors import DdtreectlError
from ddtreectl.facts import cordons
from ddtreectl.facts.cordons import Cordon
from ddtreectl.facts.output import json_object

VARIABLE = "XDG_STATE_HOME"


class KeptCordons:
    """The cordons that an operator keeps for the hosts of one inventory.

    Args:
        inventory: the inventory file.
    """

    def __init__(self, inventory: Path) -> None:
        absolute = str(inventory.resolve())
        name = hashlib.sha256(absolute.encode()).hexdigest()[:16]
        state = Path(os.environ.get(VARIABLE) or Path.home() / ".local/state")
        self._inventory = absolute
        self.path = state / "ddtreectl" / f"cordons-{name}.json"

    def of(self, host: str) -> tuple[Cordon, ...]:
        """The cordons of a host; none where there is no file, or none that can be read."""
        entries = self._read().get(host)
        if not isinstance(entries, dict):
            return ()
        return tuple(
            replace(cordons.cordon(str(name), content), kept="operator")
            for name, content in sorted(entries.items())
            if isinstance(content, dict)
        )

    def add(self, host: str, cordon: Cordon) -> None:
        """Keep a cordon.

        Raises:
            DdtreectlError: it cannot be written.
        """
        with self._changed() as content:
            entries = content.get(host)
            entries = entries if isinstance(entries, dict) else {}
            content[host] = {**entries, cordon.name: cordon.to_json()}

    def remove(self, host: str, *names: str) -> None:
        """Forget cordons of a host; one that is not there is no error."""
        if not set(names).intersection(cordon.name for cordon in self.of(host)):
            return
        with self._changed() as content:
            entries = content.get(host)
            entries = entries if isinstance(entries, dict) else {}
            left = {name: entry for name, entry in entries.items() if name not in names}
            content.pop(host, None)
            if left:
                content[host] = left

    def _read(self) -> dict[str, object]:
        try:
            hosts = json_object(self.path.read_text()).get("hosts")
        except (OSError, ValueError):
            return {}
        return hosts if isinstance(hosts, dict) else {}

    @contextlib.contextmanager
    def _changed(self) -> Iterator[dict[str, object]]:
        """The content, which is written when the block ends; one writer at a time."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self.path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                content = self._read()
                yield content
                text = json.dumps({"inventory": self._inventory, "hosts": content}, indent=1)
                fresh = self.path.with_suffix(".new")
                fresh.write_text(text + "\n")
                fresh.replace(self.path)
        except OSError as error:
            raise DdtreectlError(
                f"`{self.path}` cannot be written",
                cause=error.strerror or str(error),
                hint=f"${VARIABLE} names another folder",
            ) from error
