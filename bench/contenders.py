"""What is compared: each contender as a function that does its work once, from no connection on."""

import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
import venv
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bench import hosts as hosts_of_bench
from bench import others
from ddtreectl.cli import status_table
from ddtreectl.cli.context import Context
from ddtreectl.plan.status import host_status
from tests.fleet.lab.fleet import Fleet
from tests.fleet.operator import Operator

HERE = Path(__file__).parent
TOOLS = HERE.parent / ".bench-venv"
AT_ONCE = 24
"""Hosts that the other tools work on at the same time; ddtreectl takes 16 by itself."""

DEPLOYS_AT_ONCE = 8
REFRESHES = 6
UNIT = "ddtree-gpu0-tree.service"

STATUS, NO_OP, REFRESH = "`ddtreectl status`", "`ddtreectl deploy`, no-op", "a refresh"
FACTS = (
    *(STATUS, "pyinfra, a fact a kind", "pyinfra, one fact"),
    *("ansible, a task a kind", "ansible, one task"),
)
NO_OPS = (NO_OP, "pyinfra, no-op", "ansible, no-op")
SLOW = frozenset({"ansible, a task a kind", "ansible, no-op"})
"""What takes a minute or so, and is measured in fewer rounds."""

NOT_COMPARED = frozenset({"uptime_seconds"})
"""What changes from one look to the next while all is the same."""


class NotTheSameError(Exception):
    """A run did something else than what is measured, or found something else."""


def tools() -> Path:
    """The environment of the other tools; made and filled where it is not there."""
    pinned = (HERE / "requirements.txt").read_text()
    mark = TOOLS / "installed.txt"
    if not mark.exists() or mark.read_text() != pinned:
        venv.create(TOOLS, clear=True, with_pip=True)
        pip = [str(TOOLS / "bin/python"), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "-r", str(HERE / "requirements.txt")], check=True)
        mark.write_text(pinned)
    return TOOLS / "bin"


class Contenders:
    """All of them, for one fleet.

    Args:
        fleet: the hosts.
        operator: how ddtreectl reaches them.
        folder: for files of the other tools.
    """

    def __init__(self, fleet: Fleet, operator: Operator, folder: Path) -> None:
        self.fleet, self.operator, self.folder = fleet, operator, folder
        self.programs = tools()
        # An installed program has its bytecode; a checkout may be told to have none.
        operator.env["PYTHONDONTWRITEBYTECODE"] = ""
        operator.env["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        context = Context(operator.inventory)
        self.inventory = context.inventory()
        self.scope = context.session(self.inventory, next(iter(fleet.hosts))).scope()
        files = {
            name: host.root / "etc/systemd/system" / UNIT for name, host in fleet.hosts.items()
        }
        units = {name: file.read_text() if file.exists() else "" for name, file in files.items()}
        others.write(folder, others.commands(self.scope), units, operator.ssh_config)
        self.found: dict[str, object] = {}

    def all(self) -> dict[str, Callable[[], None]]:
        """By name, in the order in which they take their turns."""
        deploy = ["deploy", *self.fleet.hosts, "--mode", "tree", "--slot", "gpu0", "--json"]
        parallel = ["--parallel", str(min(DEPLOYS_AT_ONCE, len(self.fleet.hosts)))]
        facts = (
            self._status,
            partial(self._pyinfra_facts, "kinds.py"),
            partial(self._pyinfra_facts, "once.py"),
            partial(self._ansible_facts, "kinds.yml"),
            partial(self._ansible_facts, "once.yml"),
        )
        deploys = (
            partial(self._no_op, *deploy, *parallel),
            lambda: self._pyinfra("deploy.py"),
            lambda: self._ansible("deploy.yml"),
        )
        every: dict[str, Callable[[], object]] = dict(zip(FACTS, facts, strict=True))
        every |= dict(zip(NO_OPS, deploys, strict=True))
        return {name: partial(_nothing, act) for name, act in every.items()}

    def check(self, name: str) -> None:
        """Refuse what a contender has found, where it is not what `ddtreectl status` has.

        Raises:
            NotTheSameError: it is not.
        """
        if name not in FACTS:
            return
        said = self.found[name]
        if isinstance(said, dict) and name != STATUS:
            statuses = [
                host_status(
                    host,
                    self.inventory.hosts[host],
                    others.facts(said.get(host, ""), self.scope),
                    now=0.0,
                    locked=False,
                )
                for host in self.fleet.hosts
            ]
            said = json.loads(json.dumps(status_table.document(statuses, {})))
        ours = _compared(self.found[STATUS])
        if _compared(said) != ours:
            raise NotTheSameError(f"it found other facts than {STATUS}")

    def _status(self) -> None:
        done = self.operator.run("status", "--json", timeout=600)
        if done.returncode != 0:
            raise RuntimeError(done.stdout[-1000:] + done.stderr[-2000:])
        self.found[STATUS] = json.loads(done.stdout)

    def _no_op(self, *words: str) -> None:
        done = self.operator.run(*words, timeout=600)
        changed = done.stdout.count('"deployed"')
        if done.returncode != 0 or changed:
            raise NotTheSameError(f"exit code {done.returncode}, {changed} hosts were deployed to")

    def _env(self, **more: str) -> dict[str, str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8", **more}

    def _pyinfra(self, file: str) -> None:
        argv = [str(self.programs / "pyinfra"), "inventory.py", file, "-y", "--parallel"]
        env = self._env(PYINFRA_PROGRESS="off")
        hosts_of_bench.run(self.fleet, [*argv, str(AT_ONCE)], env, self.folder)

    def _pyinfra_facts(self, file: str) -> None:
        self._pyinfra(file)
        name = FACTS[1] if file == "kinds.py" else FACTS[2]
        self.found[name] = others.said_to_pyinfra(self.folder)

    def _ansible_facts(self, file: str) -> None:
        name = FACTS[3] if file == "kinds.yml" else FACTS[4]
        self.found[name] = others.said_to_ansible(self._ansible(file))

    def _ansible(self, file: str) -> str:
        with tempfile.TemporaryDirectory(prefix="cp-", dir="/tmp") as sockets:
            config = self.folder / "ansible.cfg"
            config.write_text(
                others.ANSIBLE_CFG.format(
                    forks=AT_ONCE,
                    ssh_config=self.operator.ssh_config,
                    sockets=sockets,
                )
            )
            argv = [str(self.programs / "ansible-playbook"), "-i", "hosts.ini", file]
            env = self._env(ANSIBLE_CONFIG=str(config))
            try:
                return hosts_of_bench.run(self.fleet, argv, env, self.folder)
            finally:  # the next run is a first contact again
                for path in Path(sockets).iterdir():
                    leave = ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "any"]
                    subprocess.run(leave, capture_output=True, check=False)

    def refresh(self) -> float:
        """Seconds of a refresh of a watch without pauses: the median of some."""
        words = ["status", "--watch", "--interval", "0", "--count", str(REFRESHES), "--json"]
        process = self.operator.begin(*words)
        assert process.stdout is not None  # noqa: S101
        times = [time.monotonic() for line in process.stdout if json.loads(line)]
        process.communicate()
        return statistics.median(after - before for before, after in itertools.pairwise(times))


def _nothing(act: Callable[[], object]) -> None:
    act()


def _compared(found: object) -> object:
    """What was found, without what changes by itself."""
    if isinstance(found, Mapping):
        return {key: _compared(value) for key, value in found.items() if key not in NOT_COMPARED}
    return [_compared(each) for each in found] if isinstance(found, list) else found
