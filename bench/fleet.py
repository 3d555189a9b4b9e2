"""First contact, refresh and no-op deploy of a fleet: ddtreectl, ansible-core's modules, pyinfra.

    python -m bench.fleet              # `make bench-fleet`: 24 hosts that serve, a table
    python -m bench.fleet --facts      # hosts that serve nothing, and no deploys
    python -m bench.fleet --hosts 3 --rounds 1

All run one after the other in each round, so that what else the machine does hits all of them. Each
starts without a connection, and must find the same facts. The other tools are in an environment
that is made here, and never in the project's own.
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench import hosts as hosts_of_bench
from bench.contenders import (
    FACTS,
    NO_OP,
    NO_OPS,
    REFRESH,
    SLOW,
    STATUS,
    Contenders,
    NotTheSameError,
)
from tests.fleet.operator import Operator

SLOW_ROUNDS = 3


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

    def row(self, base: "Series | None") -> str:
        """Median, range, CPU, rounds, and the median of the rounds' ratios to `base`, as cells."""
        low, high = min(self.seconds), max(self.seconds)
        cpu = [
            f"{statistics.median(each):.1f}" if each else "" for each in (self.client, self.hosts)
        ]
        cells = [f"{statistics.median(self.seconds):.2f}", f"{low:.2f}-{high:.2f}", *cpu]
        return " | ".join([*cells, str(len(self.seconds)), self.times(base) if base else ""])

    def times(self, base: "Series") -> str:
        """How many times as long as `base` it takes: the median of the rounds' own ratios."""
        pairs = zip(self.seconds, base.seconds, strict=False)
        return f"{statistics.median(own / theirs for own, theirs in pairs):.2f}"


class Benchmark:
    """One run.

    Args:
        contenders: what is measured.
        wanted: the names of those that take part.
        slow_rounds: rounds in which the slow ones take part.
    """

    def __init__(self, contenders: Contenders, wanted: tuple[str, ...], slow_rounds: int) -> None:
        self.contenders, self.wanted, self.slow_rounds = contenders, wanted, slow_rounds
        self.series: dict[str, Series] = {}

    def round(self, number: int) -> None:
        """Measure every contender once."""
        for name, act in self.contenders.all().items():
            if name in self.wanted and (name not in SLOW or number <= self.slow_rounds):
                hosts = hosts_of_bench.cpu_seconds(self.contenders.fleet)
                before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
                try:
                    act()
                    seconds = time.monotonic() - began
                    after = resource.getrusage(resource.RUSAGE_CHILDREN)
                    self.contenders.check(name)
                except NotTheSameError as error:
                    _say(f"  {name}: left out of this round: {error}")
                    continue
                used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                series = self.series.setdefault(name, Series())
                series.seconds.append(seconds)
                series.client.append(used)
                series.hosts.append(hosts_of_bench.cpu_seconds(self.contenders.fleet) - hosts)
                _say(f"  {name}: {seconds:.2f} s")
        seconds = self.contenders.refresh()
        self.series.setdefault(REFRESH, Series()).seconds.append(seconds)
        _say(f"  {REFRESH}: {seconds:.2f} s")

    def tables(self) -> list[str]:
        """The tables, in Markdown."""
        lines = []
        for base, names in ((STATUS, (*FACTS, REFRESH)), (NO_OP, NO_OPS)):
            found = {name: self.series[name] for name in names if name in self.series}
            if base not in found:
                continue
            cells = ["s, median", "s, range", "CPU s, operator", "CPU s, all hosts", "rounds"]
            lines += [
                f"| | {' | '.join(cells)} | times {base} |",
                "|---|---:|---:|---:|---:|---:|---:|",
                *(f"| {name} | {series.row(found[base])} |" for name, series in found.items()),
                "",
            ]
        return lines


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def start_times(env: Mapping[str, str], runs: int = 15) -> tuple[float, float]:
    """Seconds of `python -c "import typer"` and of `ddtreectl --help`: medians, interleaved."""
    commands = (["-c", "import typer"], ["-m", "ddtreectl", "--help"])
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        for taken, words in zip(times, commands, strict=True):
            began = time.monotonic()
            argv = [sys.executable, *words]
            subprocess.run(argv, capture_output=True, check=True, env={**os.environ, **env})
            taken.append(time.monotonic() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Boot the hosts, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow-rounds", type=int, default=SLOW_ROUNDS, help="of what is slow")
    parser.add_argument("--facts", action="store_true", help="hosts that serve nothing, no deploys")
    parser.add_argument("--quick", action="store_true", help="without what is slow")
    options = parser.parse_args()
    wanted = FACTS if options.facts else (*FACTS, *NO_OPS)
    load, began = os.getloadavg()[0], time.monotonic()
    with hosts_of_bench.boot(options.hosts) as fleet, tempfile.TemporaryDirectory() as folder:
        operator = Operator(fleet, Path(folder))
        if not options.facts:
            _say(f"deploying to {options.hosts} hosts")
            hosts_of_bench.serve(fleet, operator, Path(folder))
        contenders = Contenders(fleet, operator, Path(folder))
        contenders.all()[STATUS]()  # its bytecode is there from then on
        benchmark = Benchmark(contenders, wanted, 0 if options.quick else options.slow_rounds)
        loads = []
        for number in range(1, options.rounds + 1):
            _say(f"round {number}")
            benchmark.round(number)
            loads.append(os.getloadavg()[0])
        typer, ours = start_times(operator.env)
    serving = "that serve nothing" if options.facts else "that serve in one of two slots"
    print(
        f"{options.hosts} hosts {serving}, {options.rounds} rounds, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, load before {load:.1f}, in the rounds "
        f"{min(loads):.0f}-{max(loads):.0f}; {(time.monotonic() - began) / 60:.1f} minutes in all\n"
    )
    print("\n".join(benchmark.tables()))
    print(
        f"`ddtreectl --help` {ours:.3f} s, `import typer` {typer:.3f} s: {ours / typer:.2f} times"
    )


if __name__ == "__main__":
    main()
