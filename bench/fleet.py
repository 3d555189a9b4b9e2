"""First contact, refresh and no-op deploy of a fleet: ddtreectl, ansible-core's modules, pyinfra.

    python -m bench.fleet              # `make bench-fleet`: 24 hosts, 5 rounds, a table
    python -m bench.fleet --hosts 3 --rounds 1

All run one after the other in each round, so that what else the machine does hits all of them. Each
starts without a connection. The other tools are in an environment that is made here, and never in
the project's own.
"""

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench import hosts as hosts_of_bench
from bench import others
from ddtreectl.cli.context import Context
from tests.fleet.lab.fleet import Fleet
from tests.fleet.operator import Operator

HERE = Path(__file__).parent
TOOLS = HERE.parent / ".bench-venv"
REFRESHES = 6
AT_ONCE = 16
"""Hosts that each tool works on at the same time, as ddtreectl does by itself."""

DEPLOYS_AT_ONCE = 8
UNIT = "ddtree-gpu0-tree.service"

NO_OPS = frozenset({"`ddtreectl deploy`, no-op", "pyinfra, no-op", "ansible, no-op"})
SLOW = frozenset({"ansible, a task a kind", "ansible, no-op"})
"""What takes minutes, and is measured in the first round alone."""


class NotTheSameError(Exception):
    """A run did something else than what is measured: a service did not answer in time."""


@dataclass
class Series:
    """The measurements of one contender.

    Attributes:
        seconds: wall time of each round.
        client: CPU seconds on the operator's side.
        hosts: CPU seconds of all hosts.
    """

    seconds: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    hosts: list[float] = field(default_factory=list)

    def row(self) -> str:
        """Median, range and CPU as cells of a table."""
        low, high = min(self.seconds), max(self.seconds)
        cpu = [
            f"{statistics.median(each):.1f}" if each else "" for each in (self.client, self.hosts)
        ]
        cells = [f"{statistics.median(self.seconds):.2f}", f"{low:.2f}-{high:.2f}", *cpu]
        return " | ".join([*cells, str(len(self.seconds))])


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


class Benchmark:
    """One run.

    Args:
        fleet: the hosts, which serve.
        operator: how ddtreectl reaches them.
        folder: for files of the other tools.
        skipped: contenders that are left out.
    """

    def __init__(
        self, fleet: Fleet, operator: Operator, folder: Path, skipped: frozenset[str]
    ) -> None:
        self.fleet, self.operator, self.folder = fleet, operator, folder
        self.skipped = skipped
        self.series: dict[str, Series] = {}
        self.programs = tools()
        session_of = Context(operator.inventory)
        scope = session_of.session(session_of.inventory(), next(iter(fleet.hosts))).scope()
        unit = folder / "unit.service"
        installed = next(iter(fleet.hosts.values())).root / "etc/systemd/system" / UNIT
        unit.write_text(installed.read_text() if installed.exists() else "")
        hosts = list(fleet.hosts)
        others.write(folder, others.commands(scope), hosts, operator.ssh_config, unit)

    def contenders(self) -> dict[str, Callable[[], object]]:
        """Everything that a round measures, in its order."""
        deploy = ["deploy", *self.fleet.hosts, "--mode", "tree", "--slot", "gpu0"]
        parallel = ["--parallel", str(min(DEPLOYS_AT_ONCE, len(self.fleet.hosts)))]
        return {
            "`ddtreectl status`": lambda: self._ours("status", "--json"),
            "pyinfra, a fact a kind": lambda: self._pyinfra("kinds.py"),
            "pyinfra, one fact": lambda: self._pyinfra("once.py"),
            "ansible, a task a kind": lambda: self._ansible("kinds.yml"),
            "ansible, one task": lambda: self._ansible("once.yml"),
            "`ddtreectl deploy`, no-op": lambda: self._no_op(*deploy, *parallel, "--json"),
            "pyinfra, no-op": lambda: self._pyinfra("deploy.py"),
            "ansible, no-op": lambda: self._ansible("deploy.yml"),
        }

    def round(self) -> None:
        """Measure every contender once."""
        for name, act in self.contenders().items():
            if name not in self.skipped and (name not in SLOW or name not in self.series):
                self._measured(name, act)
        self._refresh()

    def _measured(self, name: str, act: Callable[[], object]) -> None:
        before, hosts = (
            resource.getrusage(resource.RUSAGE_CHILDREN),
            hosts_of_bench.cpu_seconds(self.fleet),
        )
        began = time.monotonic()
        try:
            act()
        except NotTheSameError as error:
            print(f"  {name}: left out of this round: {error}", file=sys.stderr, flush=True)
            return
        series = self.series.setdefault(name, Series())
        series.seconds.append(time.monotonic() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        series.client.append(used)
        series.hosts.append(hosts_of_bench.cpu_seconds(self.fleet) - hosts)
        print(f"  {name}: {series.seconds[-1]:.2f} s", file=sys.stderr, flush=True)

    def _ours(self, *words: str) -> None:
        done = self.operator.run(*words, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(done.stdout[-1000:] + done.stderr[-2000:])

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
        count = str(len(self.fleet.hosts))
        hosts_of_bench.run(
            self.fleet, [*argv, count], self._env(PYINFRA_PROGRESS="off"), self.folder
        )

    def _ansible(self, file: str) -> None:
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
            try:
                hosts_of_bench.run(
                    self.fleet, argv, self._env(ANSIBLE_CONFIG=str(config)), self.folder
                )
            finally:  # the next run is a first contact again
                for path in Path(sockets).iterdir():
                    leave = ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "any"]
                    subprocess.run(leave, capture_output=True, check=False)

    def _refresh(self) -> None:
        """A watch without pauses: from a document to the next."""
        words = ["status", "--watch", "--interval", "0", "--count", str(REFRESHES), "--json"]
        process = self.operator.begin(*words)
        assert process.stdout is not None  # noqa: S101
        times = [time.monotonic() for line in process.stdout if json.loads(line)]
        process.communicate()
        gaps = [after - before for before, after in itertools.pairwise(times)]
        series = self.series.setdefault("`status --watch`, a refresh", Series())
        series.seconds.append(statistics.median(gaps))
        print(f"  refresh: {series.seconds[-1]:.2f} s", file=sys.stderr, flush=True)


def start_times(runs: int = 15) -> tuple[float, float]:
    """Seconds of `python -c "import typer"` and of `ddtreectl --help`: medians, interleaved."""
    commands = (["-c", "import typer"], ["-m", "ddtreectl", "--help"])
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        for taken, words in zip(times, commands, strict=True):
            began = time.monotonic()
            subprocess.run([sys.executable, *words], capture_output=True, check=True)
            taken.append(time.monotonic() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def ratios(series: dict[str, Series]) -> list[str]:
    """The bars, each as the median of the rounds' own ratios."""

    def ratio(slow: str, fast: str) -> float:
        pairs = zip(series[slow].seconds, series[fast].seconds, strict=False)
        return statistics.median(a / b for a, b in pairs)

    ours, refresh = "`ddtreectl status`", "`status --watch`, a refresh"
    return (
        [
            f"{name}: {ratio(name, ours):.1f} x `ddtreectl status`"
            for name in series
            if "kind" in name or "one" in name
        ]
        + [
            f"{name}: {ratio(name, '`ddtreectl deploy`, no-op'):.1f} x the no-op deploy"
            for name in ("pyinfra, no-op", "ansible, no-op")
            if name in series
        ]
        + [f"a refresh: {1 / ratio(ours, refresh):.2f} x first contact"]
    )


def main() -> None:
    """Boot the hosts, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--facts", action="store_true", help="hosts that serve nothing, and no deploys"
    )
    parser.add_argument("--quick", action="store_true", help="without what takes minutes")
    options = parser.parse_args()
    skipped = (SLOW if options.quick else frozenset()) | (NO_OPS if options.facts else frozenset())
    load = os.getloadavg()
    with hosts_of_bench.boot(options.hosts) as fleet, tempfile.TemporaryDirectory() as folder:
        operator = Operator(fleet, Path(folder))
        if not options.facts:
            print(f"deploying to {options.hosts} hosts", file=sys.stderr)
            hosts_of_bench.serve(fleet, operator, Path(folder))
        benchmark = Benchmark(fleet, operator, Path(folder), skipped)
        loads = []
        for number in range(1, options.rounds + 1):
            print(f"round {number}", file=sys.stderr)
            benchmark.round()
            loads.append(os.getloadavg()[0])
        typer, ours = start_times()
    print(
        f"{options.hosts} hosts, {options.rounds} rounds, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, load before {load[0]:.1f}, "
        f"in the rounds {min(loads):.0f}-{max(loads):.0f}\n"
    )
    print("| | s, median | s, range | CPU s, operator | CPU s, all hosts | runs |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, series in benchmark.series.items():
        print(f"| {name} | {series.row()} |")
    print()
    for line in ratios(benchmark.series):
        print(f"- {line}")
    print(f"- `ddtreectl --help` {ours:.3f} s, `import typer` {typer:.3f} s: {ours / typer:.2f} x")


if __name__ == "__main__":
    main()
