"""A lab for a person: boot hosts, log in, break things, take them down."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.fleet import engine_wheel
from tests.fleet.lab import packages
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.gpu import GpuState
from tests.fleet.lab.host import Host
from tests.fleet.lab.shell import LabError
from tests.fleet.lab.topology import HostSpec

FOLDER = Path("/run/ddtree-lab")
MODULE = f"{os.path.relpath(sys.executable)} -m tests.fleet.lab"
DISK = "16G"
"""Of each host: what a deploy wants to be free, and more. It takes the memory of what is in it."""

FAULTS: dict[str, tuple[str, Callable[[Host, argparse.Namespace], None]]] = {
    "cut": ("pull the network plug", lambda host, _: host.cut()),
    "blackhole": ("lose all packets while the link looks up", lambda host, _: host.blackhole()),
    "reset": ("end all TCP connections by a reset", lambda host, _: host.reset_connections()),
    "slow": (
        "slow the network down",
        lambda host, o: host.slow(rate=o.rate, delay=o.delay, jitter=o.jitter, loss=o.loss),
    ),
    "freeze": ("stop all processes", lambda host, _: host.freeze()),
    "fill": ("fill the disk, but for --free KiB", lambda host, o: host.fill(o.free)),
    "fill-inodes": ("use up the inodes, but for --free", lambda host, o: host.fill_inodes(o.free)),
    "kill": ("take the power away", lambda host, _: host.kill()),
    "stop": ("shut down", lambda host, _: host.stop()),
    "reboot": ("shut down and boot again", lambda host, _: host.reboot()),
    "renew": ("install anew: an empty disk", lambda host, _: host.renew()),
    "rekey": ("install anew, with another host key", lambda host, _: host.renew(new_key=True)),
    "heal": ("undo all faults, and boot if it is down", lambda host, _: host.heal()),
}


def up(options: argparse.Namespace) -> None:
    """Boot a lab that stays, and say how to use it."""
    if reason := packages.unavailable():
        raise LabError(reason)
    if (options.folder / "lab.json").exists():
        try:
            Fleet.attach(options.folder)
        except LabError:
            shutil.rmtree(options.folder)  # its supervisor was killed
        else:
            raise LabError(f"a lab runs in {options.folder} already; `{MODULE} down` ends it")
    hosts = [
        HostSpec(f"h{number}", gpus=options.gpus, behind=_bastion(number, options), disk=DISK)
        for number in range(1, options.hosts + 1)
    ]
    fleet = Fleet.boot(hosts, folder=options.folder, kept=True)
    for host in fleet.hosts.values():
        behind = f", behind {host.spec.behind}" if host.spec.behind else ""
        print(f"{host.name}  {host.address}{behind}  {host.spec.gpus} GPUs")
    stand_in = engine_wheel.build(options.folder)
    slot = "--gpu 0" if options.gpus else "--slot cpu0"
    ddtreectl = f"ddtreectl --inventory {options.folder}/inventory.yaml"
    print(f"\nInventory ({options.folder}/inventory.yaml):\n")
    print((options.folder / "inventory.yaml").read_text())
    print(
        "The hosts are in a network of their own; commands enter it by `exec`. Their GPUs are\n"
        "played, so what is deployed to them is a stand-in that answers for the engine:\n"
    )
    for usage in (
        "ssh h1",
        "ssh deploy@h2 sudo -n systemctl status",
        f"exec {ddtreectl} status",
        f"exec env DDTREECTL_ENGINE_WHEEL={stand_in} {ddtreectl} deploy h1 {slot} --mode tree",
        f"exec ssh -F {options.folder}/ssh_config h1",
        "fault h1 slow --delay 0.1",
        "kmsg h1 'NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.'",
        "gpu h1 --gpu 1 --fault lost",
        "fault h1 heal",
        "down",
    ):
        print(f"  {MODULE} {usage}")


def _bastion(number: int, options: argparse.Namespace) -> str | None:
    return "h1" if options.bastion and number > 1 else None


def ssh(options: argparse.Namespace) -> None:
    """Log in to a host, or run a command on it."""
    _become([*Fleet.attach(options.folder).ssh(options.host), *options.command])


def execute(options: argparse.Namespace) -> None:
    """Run a program of this machine in the lab's network; those of the interpreter come first."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise LabError("no command to run")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    _become(Fleet.attach(options.folder).inside(*command))


def fault(options: argparse.Namespace) -> None:
    """Hurt a host, or heal it."""
    FAULTS[options.fault][1](_host(options), options)


def kmsg(options: argparse.Namespace) -> None:
    """Add a line to the kernel log of a host."""
    _host(options).log(options.line, options.priority)


def gpu(options: argparse.Namespace) -> None:
    """Change what the driver of a host says; without changes, print what it says when healthy."""
    host = _host(options)
    if options.state is not None:
        state = GpuState.from_json(json.loads(options.state.read()))
    else:
        changes: dict[str, Any] = {**host.healthy_gpus.to_json(), "failure": options.failure}
        state = GpuState.from_json(changes)
        if options.fault and not 0 <= options.gpu < len(state.gpus):
            raise LabError(f"`{host.name}` has GPUs 0 to {len(state.gpus) - 1}")
        if options.fault:
            state = GpuState.from_json(state.with_gpu(options.gpu, fault=options.fault).to_json())
        elif not options.failure:
            print(json.dumps(state.to_json(), indent=1))
            return
    host.set_gpus(state)


def down(options: argparse.Namespace) -> None:
    """Take the lab down."""
    Fleet.attach(options.folder).close()


def _host(options: argparse.Namespace) -> Host:
    hosts = Fleet.attach(options.folder).hosts
    if options.host not in hosts:
        raise LabError(f"no host `{options.host}`; there are {', '.join(hosts)}")
    return hosts[options.host]


def _become(command: Sequence[str]) -> None:
    os.execvp(command[0], list(command))  # noqa: S606 - it gets the terminal and its signals


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=MODULE, description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the lab's files are")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, act: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        words = (act.__doc__ or "").strip()
        added = commands.add_parser(name, help=words, description=words)
        added.set_defaults(act=act)
        return added

    added = command("up", up)
    added.add_argument("hosts", type=int, nargs="?", default=3)
    added.add_argument("--gpus", type=int, default=2, help="of each host")
    added.add_argument("--bastion", action="store_true", help="all other hosts are behind h1")
    added = command("ssh", ssh)
    added.add_argument("host", help="[USER@]HOST; the users are root, deploy and deploy2")
    added.add_argument("command", nargs=argparse.REMAINDER)
    command("exec", execute).add_argument("command", nargs=argparse.REMAINDER)
    added = command("fault", fault)
    added.add_argument("host")
    faults = added.add_subparsers(dest="fault", required=True, metavar="FAULT")
    for name, (words, _) in FAULTS.items():
        kind = faults.add_parser(name, help=words, description=words)
        if name == "slow":
            kind.add_argument("--rate", type=float, default=0.0, help="bits per second")
            kind.add_argument("--delay", type=float, default=0.0, help="seconds")
            kind.add_argument("--jitter", type=float, default=0.0, help="seconds")
            kind.add_argument("--loss", type=float, default=0.0, help="share, 0 to 1")
        elif name.startswith("fill"):
            kind.add_argument("--free", type=int, default=0)
    added = command("kmsg", kmsg)
    added.add_argument("host")
    added.add_argument("line")
    added.add_argument("--priority", type=int, default=3, choices=range(8))
    added = command("gpu", gpu)
    added.add_argument("host")
    added.add_argument("--gpu", type=int, default=0, help="index of the GPU that --fault is about")
    added.add_argument("--fault", default="", help="of one GPU, such as `lost`")
    added.add_argument("--failure", default="", help="of the whole driver, such as `hang`")
    added.add_argument("--state", type=argparse.FileType(), help="a JSON file, or `-`")
    command("down", down)
    return parser


def main() -> None:
    """Do what the command line says."""
    options = _parser().parse_args()
    try:
        options.act(options)
    except (LabError, ValueError, TypeError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
