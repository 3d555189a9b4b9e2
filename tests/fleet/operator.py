"""An operator of a lab: inventory, SSH configuration and known hosts of one's own."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.network import REPOSITORY
from tests.fleet.lab.ssh import inventory


class Operator:
    """Runs ddtreectl in the network of a lab.

    Args:
        fleet: the lab.
        folder: where inventory, ssh_config and known_hosts go.
    """

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.inventory = folder / "inventory.yaml"
        self.ssh_config = folder / "ssh_config"
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text((fleet.folder / "known_hosts").read_text())
        self.ssh_config.write_text((fleet.folder / "ssh_config").read_text())
        self.set_option("UserKnownHostsFile", str(self.known_hosts))
        self.write()
        self.env = {"COLUMNS": "200"}
        # An operator's ddtreectl keeps its byte code; these tests start it hundreds of times.
        self._usual = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self.processes: list[subprocess.Popen[str]] = []

    def write(self, *, hosts: str = "", **settings: object) -> None:
        """Write the inventory of the lab, with those settings of the connection.

        Args:
            hosts: the hosts, as YAML, if not those of the lab.
            settings: fields of `ssh`.
        """
        words = {"config": self.ssh_config, **settings}
        ssh = ", ".join(f"{key}: {value}" for key, value in words.items())
        text = inventory(self.fleet.folder, self.fleet.topology)
        _, _, usual = text.partition("\n")
        self.inventory.write_text(f"ssh: {{{ssh}}}\n{hosts or usual}")

    def set_option(self, key: str, value: str) -> None:
        """Set an option of ssh_config for all hosts."""
        others = re.sub(rf"(?m)^ *{key} .*\n", "", self.ssh_config.read_text())
        self.ssh_config.write_text(f"{key} {value}\n{others}")

    def command(self, *words: str) -> list[str]:
        """The command line of ddtreectl, in the network of the lab."""
        ours = [sys.executable, "-m", "ddtreectl", "--inventory", str(self.inventory)]
        return self.fleet.inside(*ours, *words)

    def run(self, *words: str, timeout: float = 120.0) -> "subprocess.CompletedProcess[str]":
        """Run ddtreectl to its end."""
        return subprocess.run(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=REPOSITORY,
            env={**self._usual, **self.env},
            check=False,
        )

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        """Start ddtreectl."""
        process = subprocess.Popen(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={**self._usual, **self.env},
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End what was started and still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
