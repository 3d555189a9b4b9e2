"""Hosts behind a bastion, with their sshd on other ports."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.topology import HostSpec
from tests.fleet.operator import Operator
from tests.fleet.test_ssh_connections import empty_slots

PORT = 2222


@pytest.fixture(scope="module")
def hidden_fleet() -> Iterator[Fleet]:
    """Three hosts behind h1."""
    behind = [HostSpec(f"h{n}", gpus=0, ssh_port=PORT, behind="h1") for n in (2, 3, 4)]
    with Fleet.boot([HostSpec("h1", gpus=0), *behind]) as fleet:
        yield fleet


@pytest.fixture
def operator(hidden_fleet: Fleet, tmp_path: Path) -> Iterator[Operator]:
    operator = Operator(hidden_fleet, tmp_path)
    yield operator
    operator.close()
    hidden_fleet.heal()


def logins(fleet: Fleet) -> int:
    """How many connections the bastion has let in so far, other than the one that asks."""
    journal = fleet.hosts["h1"].says("journalctl --sync; journalctl -t sshd -b -o cat --no-pager")
    return sum("Accepted publickey" in line for line in journal.splitlines())


def test_one_connection_to_the_bastion(hidden_fleet: Fleet, operator: Operator) -> None:
    before = logins(hidden_fleet)
    done = operator.run("status")
    assert done.returncode == 0, done.stdout
    assert empty_slots(done) == ["h1", "h2", "h3", "h4"]
    assert logins(hidden_fleet) == before + 2  # ddtreectl's, for four hosts, and the second look


def test_a_dead_host_behind_a_bastion(hidden_fleet: Fleet, operator: Operator) -> None:
    operator.set_option("ConnectTimeout", "1")
    hidden_fleet.hosts["h3"].blackhole()
    done = operator.run("status")
    assert done.returncode == 3
    assert empty_slots(done) == ["h1", "h2", "h4"]
    h3, h1 = hidden_fleet.hosts["h3"].address, hidden_fleet.hosts["h1"].address
    assert f"`h3`: root@{h3}:{PORT} through root@{h1}:22 does not answer" in done.stdout
    assert "no connection within 1 s" in done.stdout or "No route to host" in done.stdout


def test_a_dead_bastion(hidden_fleet: Fleet, operator: Operator) -> None:
    operator.set_option("ConnectTimeout", "1")
    hidden_fleet.hosts["h1"].cut()
    done = operator.run("status")
    assert done.returncode == 4
    address = hidden_fleet.hosts["h1"].address
    assert f"`h2`: its bastion: root@{address}:22 does not answer" in done.stdout


def test_a_port_that_is_refused_behind_a_bastion(hidden_fleet: Fleet, operator: Operator) -> None:
    operator.ssh_config.write_text(
        operator.ssh_config.read_text().replace(f"Port {PORT}", f"Port {PORT + 1}")
    )
    done = operator.run("status", "h2")
    assert done.returncode == 4
    assert "the bastion cannot connect to it: Connect failed" in done.stdout


def test_keys_are_filed_under_the_port(hidden_fleet: Fleet, operator: Operator) -> None:
    h2 = hidden_fleet.hosts["h2"]
    h2.renew(new_key=True)
    done = operator.run("status")
    assert done.returncode == 3
    assert empty_slots(done) == ["h1", "h3", "h4"]
    assert f"ssh-keygen -R '[{h2.address}]:{PORT}' -f {operator.known_hosts}" in done.stdout


def test_the_key_of_the_bastion_counts_too(hidden_fleet: Fleet, operator: Operator) -> None:
    lines = operator.known_hosts.read_text().splitlines()
    address = hidden_fleet.hosts["h1"].address
    kept = [line for line in lines if not line.startswith(f"{address} ")]
    operator.known_hosts.write_text("\n".join(kept) + "\n")
    done = operator.run("status", "h2")
    assert done.returncode == 4
    assert f"`h2`: its bastion: the host key of `{address}` is not known" in done.stdout


def test_a_bastion_of_the_inventory(hidden_fleet: Fleet, operator: Operator) -> None:
    operator.ssh_config.write_text(
        operator.ssh_config.read_text().replace("    ProxyJump h1\n", "")
    )
    operator.set_option("ConnectTimeout", "1")
    assert operator.run("status", "h2").returncode == 4
    operator.write(jump="h1")
    assert operator.run("status", "h2").returncode == 0
    assert operator.run("status", "h1").returncode == 0  # not through itself


def test_a_way_in_a_circle(hidden_fleet: Fleet, operator: Operator) -> None:
    h2 = hidden_fleet.hosts["h2"].address
    operator.ssh_config.write_text(
        f"Host {h2} h2\n    HostName {h2}\n    ProxyJump h3\nHost h3\n    ProxyJump h2\n"
    )
    done = operator.run("status", "h2")
    assert done.returncode == 2
    assert "does not end after" in done.stdout
