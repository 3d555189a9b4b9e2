"""A running lab: what tests, and the command line, have of it."""

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.fleet.lab import cgroups, inotify, packages
from tests.fleet.lab.host import Host
from tests.fleet.lab.network import REPOSITORY, entered, nsenter
from tests.fleet.lab.shell import LabError, call
from tests.fleet.lab.ssh import write_inventory, write_known_hosts, write_ssh_config
from tests.fleet.lab.topology import HostSpec, Topology

ANSWER_DEADLINE = 150.0
END_DEADLINE = 30.0


class Fleet:
    """The hosts of a lab.

    Make one with `Fleet.boot`, which is a context manager, or find one with `Fleet.attach`.

    Attributes:
        folder: has `ssh_config`, `known_hosts`, `id_ed25519`, `inventory.yaml` and logs.
        hosts: by name.
    """

    def __init__(self, folder: Path, pid: int, topology: Topology) -> None:
        self.folder = folder
        self.pid = pid
        self.topology = topology
        self.hosts = {spec.name: Host(spec, self.request, self.ssh) for spec in topology.hosts}
        self._process: subprocess.Popen[str] | None = None
        self._lifeline: int | None = None

    @classmethod
    def boot(
        cls, hosts: int | Sequence[HostSpec] = 3, *, folder: Path | None = None, kept: bool = False
    ) -> Self:
        """Boot hosts and return when each accepts SSH connections.

        Args:
            hosts: how many, named `h1` …, or which ones.
            folder: where its files go; a new one by default.
            kept: whether the lab goes on when this process ends.

        Raises:
            LabError: it cannot be; nothing is left of it then.
        """
        topology = Topology.of(hosts)
        with packages.alone():
            packages.archives()
            cgroups.sweep()
            inotify.wait_for_room(len(topology.hosts))
        folder = folder or Path(tempfile.mkdtemp(prefix="ddtree-lab-"))
        folder.mkdir(mode=0o700, exist_ok=True)
        key = folder / "id_ed25519"
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(key))
        theirs, ours = os.pipe()
        with (folder / "supervisor.log").open("w") as log:
            process = subprocess.Popen(
                [
                    *["unshare", "--mount", "--net", "--propagation=private"],
                    *[sys.executable, "-m", "tests.fleet.lab.supervisor"],
                    *[str(folder), json.dumps(topology.to_json())],
                    *([] if kept else [f"--lifeline={theirs}"]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=REPOSITORY,
                pass_fds=[] if kept else [theirs],
                start_new_session=True,
            )
        os.close(theirs)
        fleet = cls(folder, process.pid, topology)
        fleet._process, fleet._lifeline = process, ours
        fleet._wait_for_hosts()
        return fleet

    @classmethod
    def attach(cls, folder: Path) -> Self:
        """The lab that was booted with that folder.

        Raises:
            LabError: there is none.
        """
        try:
            content = json.loads((folder / "lab.json").read_text())
        except (OSError, ValueError):
            raise LabError(f"no lab runs in {folder}") from None
        fleet = cls(folder, content["pid"], Topology.from_json(content["hosts"]))
        fleet.request("state")
        return fleet

    # ---- the control side ----

    def inside(self, *argv: str) -> list[str]:
        """The command line that runs `argv` in the network where the hosts' addresses are."""
        return [*nsenter(self.pid), *argv]

    def run(self, *argv: str, timeout: float = 120.0) -> "subprocess.CompletedProcess[str]":
        """Run a program of this machine in the lab's network."""
        command = self.inside(*argv)
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)

    def network(self) -> "contextlib.AbstractContextManager[None]":
        """Have this thread in the lab's network: sockets opened meanwhile belong to it."""
        return entered(self.pid)

    def ssh(self, destination: str) -> list[str]:
        """The command line that reaches a host by SSH, where a remote command can be added."""
        return self.inside("ssh", "-F", str(self.folder / "ssh_config"), destination)

    # ---- life ----

    def heal(self) -> None:
        """Undo all faults of all hosts, boot those that are down, and know their host keys."""
        state = self.request("state")
        for name, host in self.hosts.items():
            if host.hurt or state[name]["pid"] is None:
                host.heal()
        self.trust_host_keys()

    def trust_host_keys(self) -> None:
        """Have the host keys in `known_hosts` that the hosts have now."""
        write_known_hosts(self.folder, self.request("state"))

    def request(self, operation: str, host: str = "", **arguments: object) -> dict[str, Any]:
        """Have the supervisor do something, and return the state of all hosts afterwards.

        Raises:
            LabError: it cannot be done, or the supervisor is gone.
        """
        document = {"operation": operation, "host": host, "arguments": arguments}
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ANSWER_DEADLINE)
                connection.connect(str(self.folder / "socket"))
                with connection.makefile("rw") as stream:
                    stream.write(json.dumps(document) + "\n")
                    stream.flush()
                    answer = json.loads(stream.readline())
        except (OSError, ValueError) as error:
            raise LabError(f"the lab does not answer: {error}") from error
        if "error" in answer:
            raise LabError(answer["error"])
        hosts: dict[str, Any] = answer["hosts"]
        return hosts

    def close(self) -> None:
        """Take all hosts down, and wait until nothing is left of them."""
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(self.pid)
            try:
                with contextlib.suppress(LabError):
                    self.request("down")
                if not select.select([ended], [], [], END_DEADLINE)[0]:
                    raise LabError("the lab does not end")
            finally:
                os.close(ended)
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_for_hosts(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": ""}
        if "error" in answer:
            log = (self.folder / "supervisor.log").read_text() if self.folder.exists() else ""
            self._let_go()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise LabError(f"no lab: {answer['error'] or log[-2000:]}")
        write_known_hosts(self.folder, answer["hosts"])
        write_ssh_config(self.folder, self.topology)
        write_inventory(self.folder, self.topology)
        content = {"pid": self.pid, "hosts": self.topology.to_json()}
        (self.folder / "lab.json").write_text(json.dumps(content))

    def _let_go(self) -> None:
        """Give back what this process has of it; the keeper has ended, or ends by that."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self._process is not None:
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process.wait()
            self._process = None
