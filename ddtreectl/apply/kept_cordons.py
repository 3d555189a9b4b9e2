"""Cordons of hosts that could not be reached: the operator keeps them until they can.

They lie in the operator's state folder, in one file for each inventory file.
"""

from dataclasses import replace
from pathlib import Path

from ddtreectl.apply.operator_state import OperatorState
from ddtreectl.facts import cordons
from ddtreectl.facts.cordons import Cordon


class KeptCordons:
    """The cordons that an operator keeps for the hosts of one inventory.

    Args:
        inventory: the inventory file.
    """

    def __init__(self, inventory: Path) -> None:
        self._state = OperatorState(inventory, "cordons")
        self.path = self._state.path

    def of(self, host: str) -> tuple[Cordon, ...]:
        """The cordons of a host; none where there is no file, or none that can be read."""
        return tuple(
            replace(cordons.cordon(str(name), content), kept="operator")
            for name, content in sorted(self._state.of(host).items())
            if isinstance(content, dict)
        )

    def add(self, host: str, cordon: Cordon) -> None:
        """Keep a cordon.

        Raises:
            DdtreectlError: it cannot be written.
        """
        with self._state.changed() as content:
            entries = content.get(host)
            entries = entries if isinstance(entries, dict) else {}
            content[host] = {**entries, cordon.name: cordon.to_json()}

    def remove(self, host: str, *names: str) -> None:
        """Forget cordons of a host; one that is not there is no error."""
        if not set(names).intersection(cordon.name for cordon in self.of(host)):
            return
        with self._state.changed() as content:
            entries = content.get(host)
            entries = entries if isinstance(entries, dict) else {}
            left = {name: entry for name, entry in entries.items() if name not in names}
            content.pop(host, None)
            if left:
                content[host] = left
