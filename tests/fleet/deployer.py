"""An operator of one host, who deploys the stand-in engine to its one slot."""

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fleet import engine_wheel
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.topology import HostSpec
from tests.fleet.operator import Operator

REVERT_AFTER = 8
ROOT = Path("var/lib/ddtree")
SWAP = ROOT / "slots/gpu0/swap.json"
REVERT = Path("etc/systemd/system/ddtree-revert-gpu0.timer")
NEVER_READY = ["--model", "/srv/never-ready", "--drafter", "/srv/never-ready"]


class Deployer(Operator):
    """An operator of one host with one slot, who deploys the stand-in engine."""

    def __init__(
        self,
        fleet: Fleet,
        folder: Path,
        name: str,
        *,
        revert_after: int = REVERT_AFTER,
        listens: str = "127.0.0.1",
    ) -> None:
        super().__init__(fleet, folder)
        self.name = name
        self.listens = listens
        self.revert_after = revert_after
        self.host = fleet.hosts[name]
        self.write_hosts([fleet.hosts[name].address])
        self.env["DDTREECTL_ENGINE_WHEEL"] = str(engine_wheel.build(folder))
        self.set_option("ConnectTimeout", "2")
        self.set_option("ServerAliveInterval", "1")

    def write_hosts(self, addresses: Iterable[str], **slot: object) -> None:
        """Write an inventory of the hosts `h1` … with these addresses, each with one slot."""
        more = "".join(f", {key}: {value}" for key, value in slot.items())
        entries = [
            f"""\
  {name}:
    address: {address}
    revert_after: {self.revert_after}
    slots:
      gpu0:
        gpus: [0]
        port: 30000
        address: {self.listens}
        service: {{start_timeout: 60, stop_timeout: 2{more}}}
"""
            for name, address in self._named(addresses)
        ]
        self.write(hosts="hosts:\n" + "".join(entries))

    def _named(self, addresses: Iterable[str]) -> Iterable[tuple[str, str]]:
        by_address = {host.address: name for name, host in self.fleet.hosts.items()}
        return [(by_address[address], address) for address in addresses]

    def deploy(self, mode: str, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run("deploy", self.name, "--mode", mode, *words)

    def begin_until(self, said: str, *words: str) -> "subprocess.Popen[str]":
        """Begin a deploy, and return when it has reported a line with `said`."""
        return read_until(said, self.begin("deploy", self.name, *words))

    def service(self) -> dict[str, object]:
        """What status tells of the slot, or nothing while it has no service."""
        services = json.loads(self.run("status", "--json").stdout)["services"]
        return dict(services[0]) if services else {}

    def facts(self) -> tuple[object, ...]:
        service = self.service()
        return tuple(service.get(key) for key in ("generation", "mode", "health"))

    def reverting(self) -> bool:
        """Whether a dead-man revert is armed on the host."""
        return (self.host.root / REVERT).exists()

    def swapping(self) -> bool:
        return (self.host.root / SWAP).exists()

    def engines(self) -> list[str]:
        """The processes of services on the host."""
        return self.host.says("pgrep -af 'ddtree-engine [s]erve' || true").splitlines()

    def assert_as_found(self) -> None:
        assert self.facts() == (1, "tree", "healthy")
        assert len(self.engines()) == 1
        assert not self.reverting()
        assert not self.swapping()
        enabled = self.host.says("systemctl list-unit-files --state=enabled 'ddtree-*' --no-legend")
        assert [line.split()[0] for line in enabled.splitlines()] == ["ddtree-gpu0-tree.service"]


def read_until(said: str, process: "subprocess.Popen[str]") -> "subprocess.Popen[str]":
    """Read what a deploy reports until a line has `said`."""
    assert process.stderr is not None
    for line in process.stderr:
        if said in line:
            return process
    raise AssertionError(f"the deploy ended before it said {said!r}")


@contextmanager
def serving_hosts(
    folders: pytest.TempPathFactory,
    count: int,
    *,
    revert_after: int,
    listens: str = "127.0.0.1",
    more: Sequence[HostSpec] = (),
) -> Iterator[list[Deployer]]:
    """Hosts `h1` … that serve generation 1, mode tree, each with an operator of its own.

    Args:
        folders: for what each operator has.
        count: how many hosts.
        revert_after: seconds, of each host.
        listens: the address that their services listen on.
        more: hosts that are booted besides, and serve nothing.
    """
    specs = [HostSpec(f"h{number}", gpus=1, disk="16G") for number in range(1, count + 1)]
    with Fleet.boot([*specs, *more]) as fleet:
        operators = [
            Deployer(
                fleet,
                folders.mktemp(spec.name),
                spec.name,
                revert_after=revert_after,
                listens=listens,
            )
            for spec in specs
        ]
        try:
            first = [o.begin("deploy", o.name, "--mode", "tree") for o in operators]
            for operator, process in zip(operators, first, strict=True):
                _, said = process.communicate(timeout=200)
                assert process.returncode == 0, said
                operator.host.says(
                    "mkdir /srv/never-ready && cd /srv/never-ready && "
                    "echo '{}' >config.json && echo never-ready >faults"
                )
            yield operators
        finally:
            for operator in operators:
                operator.close()
