"""Where things lie on a host. Paths never move once written: units point at them."""

from dataclasses import dataclass
from hashlib import sha256

from ddtreectl.inventory.model import HostEntry
from ddtreectl.inventory.service import Mode


def unit_name(slot: str, mode: Mode) -> str:
    """The unit of a slot and mode, such as `ddtree-gpu1-tree.service`."""
    return f"ddtree-{slot}-{mode}.service"


def slot_units(slot: str) -> list[str]:
    """All units of a slot: one for each mode, of which at most one runs."""
    return [unit_name(slot, mode) for mode in Mode]


@dataclass(frozen=True)
class Layout:
    """The folders and files of one host."""

    root: str
    environments: str
    unit_dir: str

    @classmethod
    def of(cls, host: HostEntry) -> "Layout":
        """The layout that the inventory gives a host."""
        return cls(host.root, host.environments_dir, host.unit_dir)

    @property
    def lock(self) -> str:
        """The file that exists while an operator works on the host."""
        return f"{self.root}/lock.json"

    @property
    def audit(self) -> str:
        """The audit log: one JSON object a line, only ever appended to."""
        return f"{self.root}/audit.jsonl"

    @property
    def provisioned(self) -> str:
        """What was provisioned for each backend; a deploy goes by it."""
        return f"{self.root}/provisioned.json"

    @property
    def wheels(self) -> str:
        """The store of wheels and tools, each named by its hash."""
        return f"{self.environments}/.wheels"

    @property
    def package_cache(self) -> str:
        """Unpacked wheels; environments hold hard links to them, so each is there once."""
        return f"{self.environments}/.cache"

    def wheelhouse(self, identity: str) -> str:
        """The wheels of one wheelhouse, under their own names."""
        return f"{self.environments}/.wheelhouses/{identity}"

    def tool(self, name: str, version: str) -> str:
        """A program that ddtreectl brings."""
        return f"{self.environments}/.tools/{name}-{version}/{name}"

    @property
    def cordons(self) -> str:
        """The folder with a file for each cordon."""
        return f"{self.root}/cordons"

    def cordon(self, name: str) -> str:
        """The file of a cordon: `host`, or the UUID or place of a GPU."""
        return f"{self.cordons}/{name}.json"

    @property
    def settled(self) -> str:
        """Up to when errors in the kernel log have been dealt with, by GPU."""
        return f"{self.root}/settled.json"

    def environment(self, name: str) -> str:
        """A virtual environment; finished once it holds `environment.json`."""
        return f"{self.environments}/{name}"

    def claims(self, name: str) -> str:
        """The folder with the claims on an environment; roots may share a folder of them."""
        return f"{self.environments}/.claims/{name}"

    @property
    def claimant(self) -> str:
        """What claims of this root are called."""
        return sha256(self.root.encode()).hexdigest()[:16]

    def slot(self, slot: str) -> str:
        """What is kept for one slot."""
        return f"{self.root}/slots/{slot}"

    def swap(self, slot: str) -> str:
        """The journal of the swap in progress; absent when none is."""
        return f"{self.slot(slot)}/swap.json"

    def stopped(self, slot: str) -> str:
        """Exists while an operator has stopped the slot on purpose."""
        return f"{self.slot(slot)}/stopped.json"

    def moved(self, slot: str) -> str:
        """Exists once the service of the slot has moved to another one; units do not start then."""
        return f"{self.slot(slot)}/moved.json"

    def arrived(self, slot: str) -> str:
        """Where the service of the slot has come from, or is about to."""
        return f"{self.slot(slot)}/arrived.json"

    def generation(self, slot: str, number: int) -> str:
        """One immutable deployed state of a slot."""
        return f"{self.slot(slot)}/generations/{number:06d}"

    def unit(self, name: str) -> str:
        """An installed unit file."""
        return f"{self.unit_dir}/{name}"

    @staticmethod
    def unguarded(name: str) -> str:
        """The drop-in of a unit whose service comes back, until the next boot at the latest."""
        return f"/run/systemd/system/{name}.d/ddtree-returns.conf"
