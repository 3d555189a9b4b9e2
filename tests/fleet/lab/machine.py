"""One host, seen from the supervisor: its processes, cgroups, disk, cables and devices."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import time
from pathlib import Path

from tests.fleet.lab import gpu
from tests.fleet.lab.base_layer import GUEST
from tests.fleet.lab.cgroups import Cgroups
from tests.fleet.lab.disk import Disk
from tests.fleet.lab.gpu import GpuState
from tests.fleet.lab.kmsg import KernelLog
from tests.fleet.lab.network import CONTROL, Cable, nsenter
from tests.fleet.lab.relay import Slowness
from tests.fleet.lab.shell import LabError, call
from tests.fleet.lab.topology import FRONT, Topology

BOOT_DEADLINE = 60.0
STOP_DEADLINE = 60.0

# systemd.1: what its PID 1 does at these signals.
_POWER_OFF, _REBOOT = signal.SIGRTMIN + 4, signal.SIGRTMIN + 5

_DROPPED = "sys_time sys_module sys_rawio syslog mac_admin mac_override wake_alarm block_suspend"
_NAMESPACES = ["--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--time"]


class Machine:
    """A host that can be started, stopped and hurt.

    Args:
        topology: the lab that it belongs to.
        name: its name there.
        folder: what it keeps, in the supervisor's filesystem.
        layer: the layer below its disk.
        cgroups: its own.
        console: where it says what goes wrong before its journal runs.
    """

    def __init__(
        self,
        topology: Topology,
        name: str,
        *,
        folder: Path,
        layer: Path,
        cgroups: Cgroups,
        console: Path,
    ) -> None:
        self.spec = next(host for host in topology.hosts if host.name == name)
        self.folder = folder
        self.layer = layer
        self.cgroups = cgroups
        self.console = console
        self.interfaces = topology.interfaces(name)
        self.cables = [Cable(interface) for interface in self.interfaces]
        self.disk = Disk(folder / "disk", self.spec.disk)
        self.boots = 0
        self.pid: int | None = None
        self._gateway = topology.bastion_address(name) or CONTROL
        self._boot: asyncio.subprocess.Process | None = None
        self._end: asyncio.Task[None] | None = None
        self._log: KernelLog | None = None

    # ---- life ----

    def create(self) -> None:
        """Provide what outlives boots: an empty disk, a host key, healthy GPUs."""
        self.folder.mkdir()
        (self.folder / "root").mkdir()
        (self.folder / "boot_id").touch()
        self.disk.mount()
        self.new_host_key()
        self._furnish()
        self.set_gpus(GpuState.healthy(self.spec.name, self.spec.gpus))

    def new_host_key(self) -> None:
        """Make a host key, which is on the disk from the next `renew` on."""
        key = self.folder / "host_key"
        for path in (key, key.with_suffix(".pub")):
            path.unlink(missing_ok=True)
        call(
            *["ssh-keygen", "-q", "-t", "ed25519", "-N", ""],
            *["-C", self.spec.name, "-f", str(key)],
        )

    @property
    def host_key(self) -> str:
        """The public host key."""
        return (self.folder / "host_key.pub").read_text()

    async def start(self) -> None:
        """Boot, and return when sshd listens.

        Raises:
            LabError: it does not come up; the message has the last words of its console.
        """
        if self.pid is None:
            try:
                await self._spawn()
            except BaseException:
                await self.kill()
                raise
        await self._listening()

    async def stop(self) -> None:
        """Shut it down in good order."""
        await self._signal(_POWER_OFF)

    async def reboot(self) -> None:
        """Shut it down in good order and boot it again."""
        before = self.boots
        await self._signal(_REBOOT)
        end = time.monotonic() + BOOT_DEADLINE
        while self.boots == before or self.pid is None:
            if time.monotonic() > end:
                raise LabError(f"`{self.spec.name}` did not boot again")
            await asyncio.sleep(0.005)
        await self._listening()

    async def kill(self) -> None:
        """Take its power away: PID 1 and all other processes end at once."""
        self.cgroups.open_trap()
        self.cgroups.freeze(False)
        if self._boot is not None and self._boot.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self._boot.pid, signal.SIGKILL)
            await self._boot.wait()
        await self._ended()

    async def renew(self, *, new_key: bool) -> None:
        """Install it anew: an empty disk, and the old host key or a new one."""
        await self.kill()
        if new_key:
            self.new_host_key()
        self.disk.erase()
        self._furnish()
        self.set_gpus(GpuState.healthy(self.spec.name, self.spec.gpus))
        await self.start()

    # ---- faults ----

    def cut(self) -> None:
        """Pull its network plugs."""
        self._running()
        for cable in self.cables:
            cable.cut()

    async def blackhole(self) -> None:
        """Lose every packet, while the links look up."""
        self._running()
        for cable in self.cables:
            await cable.blackhole()

    async def slow(self, slowness: Slowness) -> None:
        """Slow its links down."""
        self._running()
        for cable in self.cables:
            await cable.slow(slowness)

    def reset_connections(self) -> None:
        """End each TCP connection that it has by a reset, as a firewall that restarts does."""
        networks = FRONT.rpartition(".")[0] + ".0.0/16"
        call(*nsenter(self._running()), "ss", "-K", "-H", "-t", "-a", "dst", networks)

    def freeze(self) -> None:
        """Stop all its processes: TCP connects, and nothing answers."""
        self._running()
        self.cgroups.freeze(True)

    async def heal(self) -> None:
        """Undo all faults but death: network, freezing, stuck processes, disk, GPUs."""
        self.cgroups.open_trap()
        self.cgroups.freeze(False)
        self.disk.restore()
        self.set_gpus(GpuState.healthy(self.spec.name, self.spec.gpus))
        if self.pid is not None:
            for cable in self.cables:
                await cable.heal()
            await self._emptied_trap()
            self.cgroups.make_trap()

    def log(self, line: str, priority: int) -> None:
        """Add a line to its kernel log."""
        self._running()
        assert self._log is not None
        self._log.write(line, priority)

    def set_gpus(self, state: GpuState) -> None:
        """Have its driver say that."""
        gpu.write(self.folder / "devices", state)

    # ---- how ----

    def _running(self) -> int:
        """Its PID 1, as this machine numbers it."""
        if self.pid is None:
            raise LabError(f"`{self.spec.name}` is not running")
        return self.pid

    def _furnish(self) -> None:
        """Write what is on the disk at its first boot."""
        upper = self.disk.folder / "upper"
        (upper / "etc/ssh/sshd_config.d").mkdir(parents=True)
        (upper / "etc/hostname").write_text(f"{self.spec.name}\n")
        (upper / "etc/machine-id").write_text(f"{secrets.token_hex(16)}\n")
        port = f"Port {self.spec.ssh_port}\n"
        (upper / "etc/ssh/sshd_config.d/port.conf").write_text(port)
        for suffix, mode in (("", 0o600), (".pub", 0o644)):
            key = upper / f"etc/ssh/ssh_host_ed25519_key{suffix}"
            shutil.copyfile(self.folder / f"host_key{suffix}", key)
            key.chmod(mode)
        if not self.spec.gpus:
            (upper / "usr/bin").mkdir(parents=True)
            os.mknod(upper / "usr/bin/nvidia-smi", 0o020000, 0)  # overlayfs: not there

    def _environment(self) -> dict[str, str]:
        network = [
            line
            for wire in self.interfaces
            for line in (f"link set {wire.name} up", f"addr add {wire.address}/24 dev {wire.name}")
        ]
        dropped = _DROPPED.split() + ([] if self.cgroups.guards_devices else ["mknod"])
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "NAME": self.spec.name,
            "FOLDER": str(self.folder),
            "LOWER": f"{self.layer}:/",
            "GPUS": str(self.spec.gpus),
            "SHARED": "\n".join(f"{here}:{there}" for there, here in self.spec.shared.items()),
            "NETWORK": "\n".join([*network, f"route add default via {self._gateway}"]) + "\n",
            "DROPPED": ",".join(f"-{name}" for name in dropped),
            "BOOT": str(GUEST / "boot.sh"),
        }

    async def _spawn(self) -> None:
        self.cgroups.make()
        self.cgroups.make_trap()
        enter = "".join(f"echo $$ >'{file}'; " for file in self.cgroups.enter_files())
        age = int(time.clock_gettime(time.CLOCK_BOOTTIME))
        clocks = [f"--boottime=-{age}", f"--monotonic=-{int(time.monotonic())}"]
        with self.console.open("ab") as console:
            self._boot = await asyncio.create_subprocess_exec(
                *["setpriv", "--pdeathsig", "KILL", "sh", "-ec", f'{enter} exec "$@"', "sh"],
                *["unshare", *_NAMESPACES, *clocks, "--propagation=private"],
                *["--fork", "--kill-child=KILL", "sh", "-c", 'exec sh "$BOOT"'],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=console,
                env=self._environment(),
                start_new_session=True,
            )
        boot = self._boot
        assert boot.stdin is not None
        assert boot.stdout is not None
        if await asyncio.wait_for(boot.stdout.read(1), BOOT_DEADLINE) != b"r":
            raise LabError(f"`{self.spec.name}` did not start:\n{self._last_words()}")
        children = Path(f"/proc/{boot.pid}/task/{boot.pid}/children").read_text().split()
        self.pid = int(children[0])
        self._log = KernelLog(Path(f"/proc/{self.pid}/root{self.folder}/root/dev/kmsg"))
        for cable in self.cables:
            cable.plug(self.pid)
        boot.stdin.write(b"go\n")
        boot.stdin.close()
        self.boots += 1
        self._end = asyncio.create_task(self._watch(boot))

    async def _watch(self, boot: asyncio.subprocess.Process) -> None:
        """Wait for its end; a reboot ends a PID namespace by SIGHUP, and then it boots again."""
        if await boot.wait() == -signal.SIGHUP:
            await self._forget()
            await self._spawn()
        else:
            await self._forget()

    async def _forget(self) -> None:
        self.pid = None
        if self._log is not None:
            self._log.close()
            self._log = None
        for cable in self.cables:
            await cable.unplug()

    async def _ended(self) -> None:
        if self._end is not None:
            await self._end
            self._end = None

    async def _signal(self, number: int) -> None:
        os.kill(self._running(), number)
        assert self._boot is not None
        try:
            await asyncio.wait_for(self._boot.wait(), STOP_DEADLINE)
        except TimeoutError:
            raise LabError(f"`{self.spec.name}` does not shut down") from None

    async def _listening(self) -> None:
        """Wait for sshd, by what the kernel says of the host's sockets."""
        end = time.monotonic() + BOOT_DEADLINE
        wanted = f":{self.spec.ssh_port:04X} 00000000:0000 0A "
        while True:
            if self.pid is None:
                raise LabError(f"`{self.spec.name}` died while booting:\n{self._last_words()}")
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{self.pid}/net/tcp").read_text():
                    return
            if time.monotonic() > end:
                raise LabError(f"`{self.spec.name}` has no sshd:\n{self._last_words()}")
            await asyncio.sleep(0.01)

    async def _emptied_trap(self) -> None:
        freezer = self.cgroups.paths.get("freezer")
        members = freezer / "stuck/cgroup.procs" if freezer else None
        end = time.monotonic() + STOP_DEADLINE
        while members is not None and members.exists() and members.read_text():
            if time.monotonic() > end:
                raise LabError(f"`{self.spec.name}`: a stuck process does not end")
            await asyncio.sleep(0.005)

    def _last_words(self) -> str:
        return self.console.read_text(errors="replace")[-2000:] if self.console.exists() else ""
