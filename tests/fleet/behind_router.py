"""An operator of hosts whose slots are behind a router on a host of its own."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.fleet import engine_wheel
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.hold import Hold
from tests.fleet.lab.waiting import until
from tests.fleet.operator import Operator

PORT = 8000
READY_WITHIN = 60.0


class BehindRouter(Operator):
    """An operator of hosts that serve on all of their addresses, and of the router before them.

    Args:
        fleet: the lab.
        folder: where inventory and the rest go.
        names: the hosts that serve, each in the slot `gpu0`.
        router: the host of the router.
        revert_after: seconds, of each host.
    """

    def __init__(
        self, fleet: Fleet, folder: Path, names: Sequence[str], router: str, *, revert_after: int
    ) -> None:
        super().__init__(fleet, folder)
        self.at = fleet.hosts[router]
        entries = "".join(
            f"""  {name}:
    address: {fleet.hosts[name].address}
    revert_after: {revert_after}
    slots:
      gpu0:
        gpus: [0]
        port: 30000
        address: 0.0.0.0
        behind_router: {json.dumps(name != router)}
        service: {{start_timeout: 60, stop_timeout: 2}}
"""
            for name in (*names, router)
        )
        where = f"host: {router}, address: {self.at.address}, port: {PORT}"
        self.write(hosts=f"router: {{{where}, drain_timeout: 20}}\nhosts:\n{entries}")
        self.env["DDTREECTL_ENGINE_WHEEL"] = str(engine_wheel.build(folder))
        self.set_option("ConnectTimeout", "2")
        self.set_option("ServerAliveInterval", "1")

    def workers(self) -> dict[str, str]:
        """The workers of the router, and the state that it has each in."""
        told = json.loads(self.run("router", "status", "--json").stdout)
        return {worker["name"]: worker["status"] for worker in told["workers"]}

    def await_ready(self, name: str) -> None:
        """Wait until the slot of a host gets requests."""
        ready = f"the router sends requests to {name}"
        until(lambda: self.workers().get(f"{name}/gpu0") == "ready", ready, READY_WITHIN, pause=1.0)

    def hold_list(self, change: str, name: str) -> Hold:
        """Hold the next change of that kind, `add` or `remove`, of a host's worker."""
        return self.at.hold("python3", f"/router {change} {name}/gpu0")
