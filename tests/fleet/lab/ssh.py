"""The files by which SSH, and ddtreectl, reach the hosts of a lab."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fleet.lab.topology import HostSpec, Topology

FIRST_PORT = 30000
"""Port of the service on GPU 0; the others follow."""


def known_hosts_line(address: str, port: int, host_key: str) -> str:
    """The line of known_hosts for a host."""
    name = address if port == 22 else f"[{address}]:{port}"
    return f"{name} {' '.join(host_key.split()[:2])}\n"


def write_known_hosts(folder: Path, state: Mapping[str, Any]) -> None:
    """Write `known_hosts` with the keys that the hosts have now."""
    known = [
        known_hosts_line(entry["address"], entry["port"], entry["host_key"])
        for entry in state.values()
    ]
    (folder / "known_hosts").write_text("".join(known))


def write_ssh_config(folder: Path, topology: Topology) -> None:
    """Write `ssh_config`, with which the hosts' names are destinations."""
    blocks = [_block(folder, spec, topology.address(spec.name)) for spec in topology.hosts]
    (folder / "ssh_config").write_text("\n".join(blocks))


def _block(folder: Path, spec: HostSpec, address: str) -> str:
    options = {
        "HostName": address,
        "Port": str(spec.ssh_port),
        "User": "root",
        "IdentityFile": str(folder / "id_ed25519"),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": str(folder / "known_hosts"),
        "GlobalKnownHostsFile": "none",
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": "10",
        **({"ProxyJump": spec.behind} if spec.behind else {}),
    }
    return f"Host {spec.name} {address}\n" + "".join(
        f"    {key} {value}\n" for key, value in options.items()
    )


def inventory(folder: Path, topology: Topology) -> str:
    """An inventory that ddtreectl reads: each GPU is a slot, and a host without GPUs has one."""
    lines = [f"ssh: {{config: {folder}/ssh_config}}", "hosts:"]
    for spec in topology.hosts:
        lines += [f"  {spec.name}:", f"    address: {topology.address(spec.name)}", "    slots:"]
        lines += [
            f"      gpu{index}: {{gpus: [{index}], port: {FIRST_PORT + index}}}"
            for index in range(spec.gpus)
        ] or [f"      cpu0: {{device: cpu, port: {FIRST_PORT}}}"]
    return "\n".join(lines) + "\n"


def write_inventory(folder: Path, topology: Topology) -> None:
    """Write `inventory.yaml`."""
    (folder / "inventory.yaml").write_text(inventory(folder, topology))
