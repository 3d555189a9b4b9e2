"""The hosts of the benchmark: each serves in one of its two slots, from a stand-in environment."""

import json
import subprocess
from pathlib import Path

from ddtreectl.env.wheel import Wheel
from tests.fleet import engine_wheel
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.topology import HostSpec
from tests.fleet.operator import Operator

NAME = "engine-cpu-0123456789ab"
TRIES = 3
ENVIRONMENTS = Path("var/lib/ddtree/environments")


def boot(count: int) -> Fleet:
    """Boot the hosts."""
    return Fleet.boot([HostSpec(f"h{number}", gpus=2) for number in range(1, count + 1)])


def serve(fleet: Fleet, operator: Operator, folder: Path) -> None:
    """Deploy the stand-in engine to slot `gpu0` of every host.

    Raises:
        RuntimeError: a deploy failed again and again.
    """
    wheel = engine_wheel.build(folder)
    operator.env["DDTREECTL_ENGINE_WHEEL"] = str(wheel)
    sha256 = Wheel(wheel.name, wheel.read_bytes()).sha256
    for host in fleet.hosts.values():
        _install(host.root, sha256)
    words = ["deploy", *fleet.hosts, "--mode", "tree", "--slot", "gpu0", "--parallel", "4"]
    for _ in range(TRIES):  # a busy machine can be too slow for a deadline; what serves, stays
        done = operator.run(*words, timeout=1800)
        if done.returncode == 0:
            return
    raise RuntimeError(done.stderr[-3000:])


def _install(root: Path, sha256: str) -> None:
    """Write a finished environment, as if it had been taken over from another host."""
    engine = root / ENVIRONMENTS / NAME / "bin/ddtree-engine"
    engine.parent.mkdir(parents=True)
    engine.write_text(f"#!/usr/bin/python3\n{engine_wheel.ENGINE.read_text()}")
    engine.chmod(0o755)
    (root / ENVIRONMENTS / NAME / "environment.json").write_text(json.dumps({"name": NAME}))
    record = {
        "backend": "engine",
        "environment": NAME,
        "torch": "2.11.0",
        "build": "cpu",
        "engine": sha256,
        "taken_from": "ct129",
    }
    (root / "var/lib/ddtree/provisioned.json").write_text(json.dumps({"engine": record}))


def cpu_seconds(fleet: Fleet) -> float:
    """CPU time that all hosts have used; 0 where this machine's cgroups do not tell."""
    path = Path(f"/sys/fs/cgroup/cpuacct/ddtree-lab-{fleet.pid}/cpuacct.usage")
    return int(path.read_text()) / 1e9 if path.exists() else 0.0


def run(fleet: Fleet, argv: list[str], env: dict[str, str], folder: Path) -> str:
    """Run a tool in the lab's network to its end, and return what it printed.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(
        fleet.inside(*argv), capture_output=True, text=True, env=env, cwd=folder, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{argv[:3]}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout
