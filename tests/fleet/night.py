"""Two hosts called as in the story, one of which serves, and an operator at night.

On GPU 0 of both a wrapper that is not ours has port 30000. Each host takes the part of the other in
the next test, so that a test begins wherever the one before has ended.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fleet import engine_wheel
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.host import Host
from tests.fleet.lab.topology import HostSpec
from tests.fleet.lab.waiting import until
from tests.fleet.operator import Operator

FELL_OFF = (
    "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
UNCONTAINED = "NVRM: Xid (PCI:0000:1b:00): 95, pid=7, name=python3, Uncontained: LTC TAG"
OF_AN_APPLICATION = (
    "NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=systemd, MMU Fault: ENGINE GRAPHICS"
)
WRAPPER = "wrapper.service"
NAMES = ("ct129", "ct200")
TREE16 = ("tree", 16, "healthy")


class Night(Operator):
    """An operator of ct129 and ct200, who deploys the stand-in engine."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        super().__init__(fleet, folder)
        self.hosts = [fleet.hosts[name] for name in NAMES]
        entries = "".join(
            f"""\
  {host.name}:
    address: {host.address}
    revert_after: 8
    slots:
      gpu1: {{gpus: [1], port: 30001, service: {{start_timeout: 60, stop_timeout: 2}}}}
    protected:
      - {{name: wrapper, gpus: [0], port: 30000, reason: it has clients of its own}}
"""
            for host in self.hosts
        )
        self.write(hosts=f"hosts:\n{entries}")
        self.env["DDTREECTL_ENGINE_WHEEL"] = str(engine_wheel.build(folder))
        self.env["XDG_STATE_HOME"] = str(folder / "state")
        self.set_option("ConnectTimeout", "2")
        self.set_option("ServerAliveInterval", "1")
        self.source, self.target = self.hosts
        self._serves = ""

    def status(self, *hosts: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", *hosts, "--json").stdout)
        return found

    def serving(self) -> dict[str, tuple[object, ...]]:
        """Mode, budget and health of what serves or should, by host."""
        return {
            s["host"]: (s["mode"], s["budget"], s["health"])
            for s in self.status()["services"]
            if s["health"] not in {"stopped", "moved"}
        }

    def migrate(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run("migrate", self.source.name, *words, "--yes")

    def settle(self) -> None:
        """Heal everything, and have the host that serves be the next one that is left."""
        for host in self.hosts:
            host.heal()
        where = self._serves or until(self.settled, "one host serves", deadline=60)
        self._serves = ""
        if where == self.target.name:
            self.source, self.target = self.target, self.source
        done = self.run("uncordon", *NAMES)  # which opens the slot that was left
        assert done.returncode == 0, done.stderr

    def settled(self) -> str:
        """The one host that serves, whole; nothing while that is none, or both."""
        found = self.serving()
        return next((name for name in NAMES if found == {name: TREE16}), "")

    def moved(self) -> bool:
        """Whether the service is where it was to go, whole, and nowhere else."""
        return self._alone(self.target, "the target serves alone") and not engines(self.source)

    def stayed(self) -> bool:
        """Whether the service is where it was, whole, and nowhere else."""
        return self._alone(self.source, "the source serves alone") and not engines(self.target)

    def _alone(self, host: Host, what: str) -> bool:
        until(lambda: self.settled() == host.name, what, deadline=60)
        self._serves = host.name
        return True


def engines(host: Host) -> list[str]:
    """The processes of services on a host."""
    return host.says("pgrep -af 'ddtree-engine [s]erve' || true").splitlines()


def wrapper(host: Host) -> list[str]:
    """What there is of the wrapper: its process, and whether it runs."""
    shown = host.says(f"systemctl show -p MainPID -p ActiveState -p InvocationID {WRAPPER}")
    return shown.splitlines()


@contextmanager
def booted(folder: Path) -> Iterator[Night]:
    """The hosts, with their wrappers, and ct129 serving tree with budget 16."""
    with Fleet.boot([HostSpec(name, gpus=2, disk="16G") for name in NAMES]) as fleet:
        night = Night(fleet, folder)
        for host in night.hosts:
            host.says(
                f"systemd-run --unit {WRAPPER} /usr/bin/python3 -m http.server 30000 "
                "--bind 127.0.0.1 --directory /srv"
            )
        done = night.run("deploy", "ct129", "--mode", "tree", "--budget", "16")
        assert done.returncode == 0, done.stderr
        yield night
        night.close()
