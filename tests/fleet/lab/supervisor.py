"""The one process that a lab hangs on.

It runs in a mount and a network namespace of its own and obeys requests on a socket, one JSON
document a line. It ends when it is told to, when it is signalled, and when its owner has died: the
other end of the pipe `--lifeline` is closed then. A second process, the keeper, does nothing but
wait for its end and remove what the kernel does not: cgroups and the folder.
"""

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from tests.fleet.lab import base_layer, network
from tests.fleet.lab.cgroups import PREFIX, Cgroups
from tests.fleet.lab.gpu import GpuState
from tests.fleet.lab.machine import Machine
from tests.fleet.lab.relay import Slowness
from tests.fleet.lab.shell import LabError, call
from tests.fleet.lab.topology import Topology

_PR_SET_PDEATHSIG = 1

Operation = Callable[..., Awaitable[None] | None]


class Supervisor:
    """All hosts of a lab, and the requests that they get.

    Args:
        folder: where socket, key and logs are; on this machine's filesystem.
        topology: the hosts.
        cgroups: the lab's own.
    """

    def __init__(self, folder: Path, topology: Topology, cgroups: Cgroups) -> None:
        self.folder = folder
        self.topology = topology
        self.cgroups = cgroups
        self.root = folder / "mnt"
        self.over = asyncio.Event()
        self.machines: dict[str, Machine] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def boot(self) -> None:
        """Build network, common layer and hosts, and boot them all."""
        network.create()
        self.root.mkdir()
        call("mount", "-t", "tmpfs", "-o", "mode=755", "lab", str(self.root))
        layer = self.root / "layer"
        addresses = {host.name: self.topology.address(host.name) for host in self.topology.hosts}
        base_layer.build(layer, (self.folder / "id_ed25519.pub").read_text(), addresses)
        self.cgroups.make()
        for host in self.topology.hosts:
            machine = Machine(
                self.topology,
                host.name,
                folder=self.root / host.name,
                layer=layer,
                cgroups=self.cgroups.child(host.name),
                console=self.folder / f"{host.name}.console",
            )
            machine.create()
            self.machines[host.name] = machine
            self._locks[host.name] = asyncio.Lock()
        await asyncio.gather(*(machine.start() for machine in self.machines.values()))

    async def serve(self, lifeline: int | None, ready: Callable[[], None]) -> None:
        """Obey until the end.

        Args:
            lifeline: a pipe that is closed when the owner is gone.
            ready: called once requests are heard.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.over.set)
        if lifeline is not None:
            loop.add_reader(lifeline, self.over.set)
        server = await asyncio.start_unix_server(self._hear, self.folder / "socket")
        ready()
        await self.over.wait()
        server.close()
        if lifeline is not None:
            loop.remove_reader(lifeline)

    async def end(self) -> None:
        """Kill all hosts."""
        await asyncio.gather(*(machine.kill() for machine in self.machines.values()))

    def state(self) -> dict[str, Any]:
        """What is known of each host."""
        return {
            name: {
                "address": machine.interfaces[0].address,
                "port": machine.spec.ssh_port,
                "behind": machine.spec.behind,
                "pid": machine.pid,
                "boots": machine.boots,
                "host_key": machine.host_key,
            }
            for name, machine in self.machines.items()
        }

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            request = json.loads(await reader.readline())
            answer: dict[str, Any]
            try:
                await self._obey(request)
                answer = {"hosts": self.state()}
            except LabError as error:
                answer = {"error": str(error)}
            except (OSError, TypeError, ValueError, KeyError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _obey(self, request: Mapping[str, Any]) -> None:
        operation, arguments = request["operation"], request.get("arguments", {})
        if operation == "down":
            self.over.set()
        elif operation != "state":
            machine = self.machines[request["host"]]
            async with self._locks[request["host"]]:
                done = _operation(machine, operation)(**arguments)
                if done is not None:
                    await done


def _operation(machine: Machine, name: str) -> Operation:
    def slow(**slowness: float) -> Awaitable[None]:
        return machine.slow(Slowness(**slowness))

    def gpus(state: Mapping[str, Any]) -> None:
        machine.set_gpus(GpuState.from_json(state))

    operations: dict[str, Operation] = {
        "start": machine.start,
        "stop": machine.stop,
        "reboot": machine.reboot,
        "kill": machine.kill,
        "renew": machine.renew,
        "cut": machine.cut,
        "blackhole": machine.blackhole,
        "reset_connections": machine.reset_connections,
        "slow": slow,
        "freeze": machine.freeze,
        "fill": machine.disk.fill,
        "fill_inodes": machine.disk.fill_inodes,
        "heal": machine.heal,
        "log": machine.log,
        "gpus": gpus,
    }
    if name not in operations:
        raise LabError(f"no operation `{name}`; there are {', '.join(operations)}")
    return operations[name]


async def _run(supervisor: Supervisor, lifeline: int | None) -> None:
    def say(answer: Mapping[str, object]) -> None:
        print(json.dumps(answer), flush=True)
        os.dup2(2, 1)  # the owner may stop listening now

    try:
        try:
            await supervisor.boot()
        except (LabError, OSError) as error:
            say({"error": str(error)})
            return
        await supervisor.serve(lifeline, lambda: say({"hosts": supervisor.state()}))
    finally:
        await supervisor.end()


def _keep(child: int, folder: Path, cgroups: Cgroups) -> None:
    """Wait for the supervisor and remove what it leaves."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(child, signal.SIGTERM))
    os.waitpid(child, 0)
    try:
        cgroups.remove()
    finally:
        with contextlib.suppress(LabError):  # where there is none, it failed before it had one
            call("umount", "--lazy", str(folder / "mnt"))
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Become keeper and supervisor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("topology", type=json.loads)
    parser.add_argument("--lifeline", type=int)
    options = parser.parse_args()
    cgroups = Cgroups.current().child(f"{PREFIX}{os.getpid()}")
    topology = Topology.from_json(options.topology)
    child = os.fork()
    if child:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        os.closerange(3, 1024)
        _keep(child, options.folder, cgroups)
        sys.exit()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    asyncio.run(_run(Supervisor(options.folder, topology, cgroups), options.lifeline))


if __name__ == "__main__":
    main()
