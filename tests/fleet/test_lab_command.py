"""`python -m tests.fleet.lab`: a lab for a person."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtreectl.inventory.loader import parse
from tests.fleet.lab.network import REPOSITORY


class Command:
    """The command line, with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "tests.fleet.lab", "--folder", str(self.folder), *words],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            timeout=120,
            check=False,
        )

    def prints(self, *words: str, stdin: str = "") -> str:
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refuses(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        return done.stderr.strip()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Command, str]]:
    """A lab of two hosts that `up` has booted, and what it said."""
    command = Command(tmp_path_factory.mktemp("lab") / "lab")
    yield command, command.prints("up", "2", "--gpus", "1", "--bastion")
    command.prints("down")
    assert not command.folder.exists()
    assert "no lab runs" in command.refuses("down")


def test_up_says_how_to_use_it(lab: tuple[Command, str]) -> None:
    command, said = lab
    shown = said[said.index("hosts:") : said.index("The hosts are")]
    inventory = parse(shown, "shown")
    assert inventory.hosts["h2"].address == "10.77.1.12"
    assert f"exec ddtreectl --inventory {command.folder}/inventory.yaml status" in said
    assert "already" in command.refuses("up")


def test_the_deploy_that_it_shows_works(lab: tuple[Command, str]) -> None:
    command, said = lab
    (shown,) = [line for line in said.splitlines() if " deploy h1 " in line]
    words = shlex.split(shown)[3:]
    assert words[0] == "exec"
    command.prints(*words)
    ddtreectl = words[words.index("ddtreectl") : words.index("deploy")]
    status = json.loads(command.prints("exec", *ddtreectl, "status", "--json"))
    assert [s["health"] for s in status["services"] if s["host"] == "h1"] == ["healthy"]


def test_commands_run_on_hosts_and_beside_them(lab: tuple[Command, str]) -> None:
    command, _ = lab
    assert command.prints("ssh", "deploy@h2", "sudo -n id -un; hostname") == "root\nh2\n"
    assert command.prints("exec", "--", "cat", stdin="in") == "in"
    inventory = str(command.folder / "inventory.yaml")
    ddtreectl = ["exec", sys.executable, "-m", "ddtreectl", "--inventory", inventory]
    assert "2 hosts, 2 slots" in command.prints(*ddtreectl, "inventory", "check")
    assert command.run("exec", "false").returncode == 1
    assert command.refuses("exec") == "error: no command to run"


def test_faults(lab: tuple[Command, str]) -> None:
    command, _ = lab
    for fault in ("slow --delay 0.01", "fill --free 8", "freeze", "kill"):
        command.prints("fault", "h1", *fault.split())
    assert command.refuses("fault", "h1", "cut") == "error: `h1` is not running"
    assert command.refuses("fault", "h9", "cut") == "error: no host `h9`; there are h1, h2"
    assert "invalid choice: 'explode'" in command.refuses("fault", "h1", "explode")
    command.prints("fault", "h1", "heal")
    command.prints("kmsg", "h1", "NVRM: Xid (PCI:0000:0b:00): 79, off the bus", "--priority", "2")
    read = "journalctl --sync; journalctl -k -p 2 -o cat"
    assert "Xid" in command.prints("ssh", "h1", read)


def test_gpus(lab: tuple[Command, str]) -> None:
    command, _ = lab
    healthy = command.prints("gpu", "h1")
    command.prints("gpu", "h1", "--fault", "lost")
    asked = "nvidia-smi --query-gpu=name --format=csv,noheader"
    assert command.prints("ssh", "h1", asked) == "[GPU is lost]\n"
    command.prints("gpu", "h1", "--state", "-", stdin=healthy.replace("RTX PRO 6000", "H200"))
    assert "H200" in command.prints("ssh", "h1", asked)
    assert command.refuses("gpu", "h1", "--fault", "shy") == "error: no such fault: shy"
    assert "has GPUs 0 to 0" in command.refuses("gpu", "h1", "--gpu", "3", "--fault", "lost")
