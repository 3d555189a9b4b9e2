"""A host of one's own in a temporary folder, and a command line to drive it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ddtreectl.apply.environments import ingredients
from ddtreectl.env.backends import BACKENDS
from ddtreectl.env.lock import EnvironmentLock, pinned
from ddtreectl.facts import python as python_fact
from ddtreectl.facts.output import Output
from ddtreectl.units.supervisor import socket_folder

DATA = Path(__file__).parent / "data"
REPOSITORY = Path(__file__).parents[2]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Machine:
    """Host `local` with everything that it keeps in a temporary folder.

    Attributes:
        folder: stands for `/`: units, logs and state are in it.
        port: the port of its one slot, `cpu7`.
        inventory: its inventory file.
    """

    folder: Path
    port: int
    inventory: Path
    start_timeout: int = 20
    environments: Path | None = None
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.folder / "var/lib/ddtree"

    def write_inventory(self) -> None:
        environments = self.environments or self.root / "environments"
        self.inventory.write_text(
            "hosts:\n"
            "  local:\n"
            "    connection: local\n"
            f"    root: {self.root}\n"
            f"    environments: {environments}\n"
            f"    unit_dir: {self.folder}/etc/systemd/system\n"
            "    slots:\n"
            f"      cpu7: {{device: cpu, port: {self.port}, "
            f"service: {{start_timeout: {self.start_timeout}, stop_timeout: 2}}}}\n"
        )

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "ddtreectl", "--inventory", str(self.inventory), *words]

    def run(self, *words: str, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=REPOSITORY,
            env={**os.environ, "COLUMNS": "200"},
            check=False,
        )

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            self.command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        self.processes.append(process)
        return process

    def deploy(self, mode: str, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run("deploy", "local", "--mode", mode, *words)

    def status(self) -> dict[str, object]:
        done = self.run("status", "--json")
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def processes_of_slot(self) -> list[int]:
        """The processes that were started for a generation of this machine."""
        mark = f"DDTREE_GENERATION={self.root}/".encode()
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if has(path, mark)]

    def service(self) -> dict[str, object]:
        services = self.status()["services"]
        assert isinstance(services, list)
        assert len(services) == 1
        service = services[0]
        assert isinstance(service, dict)
        return service

    def model(self, name: str, *faults: str) -> list[str]:
        """The options that deploy a model folder whose engine has `faults`."""
        folder = self.folder / "models" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "faults").write_text("\n".join(faults))
        return ["--model", str(folder), "--drafter", str(folder)]

    def install_contract_engine(self) -> None:
        """Put a finished environment where ddtreectl looks for it, with the stand-in engine."""
        environment = self.root / "environments" / environment_name()
        (environment / "bin").mkdir(parents=True)
        engine = environment / "bin" / "ddtree-engine"
        script = (DATA / "contract_engine.py").read_text()
        engine.write_text(f"#!{sys.executable}\n{script}")
        engine.chmod(0o755)
        (environment / "environment.json").write_text('{"name": "stand-in"}')

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for pid in self.processes_of_slot():
            os.kill(pid, signal.SIGKILL)
        for folder in (self.folder, socket_folder(str(self.folder))):
            shutil.rmtree(folder, ignore_errors=True)


def has(process: Path, variable: bytes) -> bool:
    """Whether a process of /proc has an environment that holds `variable`."""
    try:
        return variable in (process / "environ").read_bytes()
    except OSError:
        return False


def environment_name() -> str:
    """The name of the environment that this checkout deploys to this machine."""
    asked = subprocess.run(
        ["sh", "-c", python_fact.command(sys.executable)],
        capture_output=True,
        text=True,
        check=True,
    )
    interpreter = python_fact.parse(Output(asked.returncode, asked.stdout))
    assert interpreter is not None
    brought = ingredients()
    torch = pinned("torch", brought.constraints)
    abi = f"{interpreter.abi} {'.'.join(map(str, interpreter.version))}"
    return EnvironmentLock(
        BACKENDS["engine"], torch, "cpu", abi, brought.constraints, brought.engine
    ).name
