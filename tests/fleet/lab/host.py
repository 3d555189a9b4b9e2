"""A host of a running lab: reach it, hurt it, heal it."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fleet.lab.gpu import GpuState
from tests.fleet.lab.hold import Hold
from tests.fleet.lab.shell import LabError
from tests.fleet.lab.topology import HostSpec

Request = Callable[..., dict[str, Any]]


class Host:
    """One host.

    Args:
        spec: what it is.
        request: sends an operation on a host to the supervisor and returns the state of all hosts.
        ssh: makes a command line that reaches the host called in its last argument.
    """

    def __init__(self, spec: HostSpec, request: Request, ssh: Callable[[str], list[str]]) -> None:
        self.spec = spec
        self.name = spec.name
        self._request = request
        self._ssh = ssh
        self._state: dict[str, Any] = {}
        self._holds: list[Hold] = []
        self.hurt = False
        """Whether something was done to it by this object that `heal` may have to undo."""
        self.logged = False
        """Whether lines were added to its kernel log, which only a boot begins anew."""

    @property
    def state(self) -> dict[str, Any]:
        """Address, port, boots, host key, and the id of its PID 1 on this machine."""
        self._state = self._request("state")[self.name]
        return self._state

    @property
    def address(self) -> str:
        """Where ssh reaches it."""
        return str((self._state or self.state)["address"])

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self.state["pid"] is not None

    @property
    def root(self) -> Path:
        """Its `/`, as a path of this machine, until it goes down.

        Raises:
            LabError: it is down.
        """
        pid = self.state["pid"]
        if pid is None:
            raise LabError(f"`{self.name}` is not running")
        return Path(f"/proc/{pid}/root")

    def ssh(
        self, command: str, *, user: str = "root", stdin: str = "", timeout: float = 60.0
    ) -> "subprocess.CompletedProcess[str]":
        """Run a shell command on it over SSH."""
        return subprocess.run(
            [*self._ssh(f"{user}@{self.name}"), command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def says(self, command: str, *, user: str = "root") -> str:
        """What a command prints.

        Raises:
            LabError: it fails.
        """
        done = self.ssh(command, user=user)
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip()
            raise LabError(f"`{command}` on `{self.name}`: exit status {done.returncode}: {said}")
        return done.stdout.strip()

    # ---- life ----

    def start(self) -> None:
        """Boot it, if it is down."""
        self._ask("start")

    def stop(self) -> None:
        """Shut it down in good order."""
        self._ask("stop")

    def reboot(self) -> None:
        """Shut it down in good order and boot it again."""
        self._ask("reboot")
        self.logged = False

    def kill(self) -> None:
        """Take its power away: PID 1 and everything below it end at once."""
        self._ask("kill")
        self.logged = False

    def renew(self, *, new_key: bool = False) -> None:
        """Install it anew: an empty disk; with `new_key` it has another host key too."""
        self._ask("renew", new_key=new_key)
        self.logged = False

    # ---- faults ----

    def cut(self) -> None:
        """Pull its network plug."""
        self._ask("cut")

    def blackhole(self) -> None:
        """Lose every packet to and from it, while its link looks up."""
        self._ask("blackhole")

    def reset_connections(self) -> None:
        """End all its TCP connections by a reset; new ones work."""
        self._ask("reset_connections")

    def slow(
        self, *, rate: float = 0.0, delay: float = 0.0, jitter: float = 0.0, loss: float = 0.0
    ) -> None:
        """Slow its network down, in each direction.

        Args:
            rate: bits per second, or 0 for no limit.
            delay: seconds that a packet takes.
            jitter: seconds by which that varies.
            loss: share of the packets that get lost, 0 to 1.
        """
        self._ask("slow", rate=rate, delay=delay, jitter=jitter, loss=loss)

    def freeze(self) -> None:
        """Stop all its processes: TCP still connects, and nothing answers."""
        self._ask("freeze")

    def fill(self, free_kib: int = 0) -> None:
        """Fill its disk up, but for that much."""
        self._ask("fill", free_kib=free_kib)

    def fill_inodes(self, free: int = 0) -> None:
        """Use up the inodes of its disk, but for so many."""
        self._ask("fill_inodes", free=free)

    def hold(self, program: str, match: str = "", *, stubborn: bool = False) -> Hold:
        """Hold the next call of a program whose arguments contain `match`; see `Hold`."""
        hold = Hold(lambda: self.root, program, match, stubborn=stubborn)
        self._holds.append(hold)
        self.hurt = True
        return hold

    def log(self, line: str, priority: int = 3) -> None:
        """Add a line to its kernel log, as in `journalctl -k`."""
        self.logged = True
        self._ask("log", line=line, priority=priority)

    @property
    def healthy_gpus(self) -> GpuState:
        """The state of its GPUs when nothing is wrong, to derive others from."""
        return GpuState.healthy(self.name, self.spec.gpus)

    def set_gpus(self, state: GpuState) -> None:
        """Have its driver say that."""
        self._ask("gpus", state=state.to_json())

    def heal(self) -> None:
        """Undo all faults, and boot it where it is down. Its disk keeps what it has."""
        self._ask("heal")
        self._ask("start")
        for hold in self._holds:
            hold.release()
        self._holds.clear()
        self.hurt = False

    def _ask(self, operation: str, **arguments: object) -> None:
        self.hurt = True
        self._state = self._request(operation, self.name, **arguments)[self.name]
