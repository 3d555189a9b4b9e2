"""Connections: who is let in, what is tried again, and how a host that does not answer is told."""

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.host import Host
from tests.fleet.lab.waiting import until
from tests.fleet.operator import Operator

TIMEOUT = "1"


@pytest.fixture
def operator(fleet: Fleet, tmp_path: Path) -> Iterator[Operator]:
    operator = Operator(fleet, tmp_path)
    yield operator
    operator.close()


def empty_slots(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """The hosts of the rows that status shows for empty slots."""
    return sorted({line.split()[0] for line in done.stdout.splitlines() if " empty " in line})


def test_a_dead_host_hides_no_other(fleet: Fleet, operator: Operator) -> None:
    operator.set_option("ConnectTimeout", TIMEOUT)
    fleet.hosts["h2"].kill()
    done = operator.run("status")
    assert done.returncode == 3, done.stderr
    assert empty_slots(done) == ["h1", "h3"]
    assert "unreachable" in done.stdout
    assert f"error: `h2`: root@{fleet.hosts['h2'].address}:22 does not answer" in done.stdout
    alone = operator.run("deploy", "h2", "--mode", "tree", "--gpu", "0")
    assert alone.returncode == 4
    assert "Traceback" not in alone.stderr


def test_a_frozen_host_is_told_from_one_that_is_gone(fleet: Fleet, operator: Operator) -> None:
    operator.set_option("ConnectTimeout", TIMEOUT)
    fleet.hosts["h1"].freeze()
    done = operator.run("status", "h1")
    assert done.returncode == 4
    assert "try 1: connected, and it says nothing: is the host hung?" in done.stdout
    fleet.hosts["h1"].heal()
    fleet.hosts["h1"].blackhole()
    done = operator.run("status", "h1")
    assert done.returncode == 4
    # Which of them depends on whether this machine still remembers its link-layer address.
    assert "no connection within" in done.stdout or "no route to host" in done.stdout


def test_a_slow_link_is_no_failure(fleet: Fleet, operator: Operator) -> None:
    fleet.hosts["h1"].slow(delay=0.1, jitter=0.03, loss=0.03)
    done = operator.run("status", "h1")
    assert done.returncode == 0, done.stdout


def test_a_port_that_nobody_listens_on_is_tried_once(fleet: Fleet, operator: Operator) -> None:
    operator.write(port=2)
    done = operator.run("status", "h1")
    assert done.returncode == 4
    assert "connection refused" in done.stdout
    assert "try " not in done.stdout


@pytest.fixture
def one_start_at_a_time(fleet: Fleet) -> Iterator[Host]:
    """A host whose sshd drops every connection while one is not logged in yet."""
    h1 = fleet.hosts["h1"]
    h1.says(
        "echo 'MaxStartups 1:100:1' >/etc/ssh/sshd_config.d/starts.conf && systemctl restart ssh"
    )
    yield h1
    h1.says("rm /etc/ssh/sshd_config.d/starts.conf && systemctl restart ssh")


def test_a_busy_sshd_is_tried_again(
    fleet: Fleet, operator: Operator, one_start_at_a_time: Host
) -> None:
    h1 = one_start_at_a_time
    with fleet.network():
        in_the_way = socket.create_connection((h1.address, 22), 5)
        in_the_way.recv(4)
    process = operator.begin("status", "h1")
    dropped = ["chroot", str(h1.root), "journalctl", "-u", "ssh", "-b", "-o", "cat", "--no-pager"]

    def drops() -> bool:
        said = subprocess.run(dropped, capture_output=True, text=True, check=False).stdout
        return "MaxStartups" in said

    until(drops, "sshd drops a connection")
    in_the_way.close()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said


def test_a_sshd_that_stays_busy_is_told(
    fleet: Fleet, operator: Operator, one_start_at_a_time: Host
) -> None:
    with fleet.network():
        in_the_way = socket.create_connection((one_start_at_a_time.address, 22), 5)
        in_the_way.recv(4)
    done = operator.run("status", "h1")
    in_the_way.close()
    assert done.returncode == 4
    assert "(`MaxStartups`)" in done.stdout
    assert "try 4: " in done.stdout


def test_a_key_that_is_not_let_in_is_offered_once(
    fleet: Fleet, operator: Operator, tmp_path: Path
) -> None:
    key = tmp_path / "other_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    operator.set_option("IdentityFile", str(key))
    begun = time.time()
    done = operator.run("status", "h1")
    assert done.returncode == 4
    assert "error: `h1`: `root` is not let in" in done.stdout
    assert f"offered {key}" in done.stdout

    def attempts() -> list[str]:
        """What sshd says of them when a connection ends, which the journal has a moment later.

        By the name that sshd gives itself: whose unit a process was, the journal cannot find out
        once it has ended.
        """
        said = fleet.hosts["h1"].says(f"journalctl -t sshd --since @{int(begun)} -o cat --no-pager")
        return [line for line in said.splitlines() if "authenticating user root" in line]

    assert len(until(attempts, "sshd has told of it")) == 1
    operator.write(identity=fleet.folder / "id_ed25519")
    assert operator.run("status", "h1").returncode == 0


def test_a_key_with_a_passphrase_is_named(fleet: Fleet, operator: Operator, tmp_path: Path) -> None:
    key = tmp_path / "locked_key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)], check=True
    )
    operator.set_option("IdentityFile", str(key))
    done = operator.run("status", "h1")
    assert done.returncode == 4
    assert f"left out {key}: it has a passphrase (`ssh-add {key}`)" in done.stdout


def test_sudo(fleet: Fleet, operator: Operator) -> None:
    for user, code in (("deploy", 0), ("deploy2", 1)):
        operator.write(
            hosts=f"hosts: {{h1: {{address: {fleet.hosts['h1'].address}, user: {user}, "
            "slots: {gpu0: {gpus: [0], port: 30000}}}}\n"
        )
        done = operator.run("status")
        assert done.returncode == code, done.stdout
    assert "`deploy2` may not become root on `h1` without a password" in done.stdout
    assert "sudo: a password is required" in done.stdout
    assert "visudo -f /etc/sudoers.d/ddtreectl" in done.stdout
    line = done.stdout.partition("with the line: ")[2].splitlines()[0]
    h1 = fleet.hosts["h1"]
    h1.says(f"echo '{line}' >/etc/sudoers.d/ddtreectl")
    h1.says("chmod 440 /etc/sudoers.d/ddtreectl && visudo -c")
    assert operator.run("status").returncode == 0
    h1.says("rm /etc/sudoers.d/ddtreectl")


def test_a_login_shell_that_runs_nothing(fleet: Fleet, operator: Operator) -> None:
    h1 = fleet.hosts["h1"]
    operator.write(
        hosts=f"hosts: {{h1: {{address: {h1.address}, user: deploy, "
        "slots: {gpu0: {gpus: [0], port: 30000}}}}\n"
    )
    h1.says("usermod -s /usr/sbin/nologin deploy")
    try:
        done = operator.run("status")
    finally:
        h1.says("usermod -s /bin/sh deploy")
    assert done.returncode == 1
    assert "`deploy` cannot run commands on `h1`" in done.stdout
    assert "not available" in done.stdout


def test_mistakes_of_the_configuration(operator: Operator) -> None:
    operator.ssh_config.write_text("Host *\n    NoSuchOption yes\n")
    done = operator.run("status", "h1")
    assert done.returncode == 2
    assert "bad configuration option" in done.stdout.lower()


def test_a_command_as_the_way(fleet: Fleet, operator: Operator) -> None:
    operator.ssh_config.write_text(
        operator.ssh_config.read_text().replace(
            "    ConnectTimeout",
            "    ProxyCommand ssh -F /dev/null -o StrictHostKeyChecking=no "
            f"-o UserKnownHostsFile=/dev/null -i {fleet.folder}/id_ed25519 -W %h:%p "
            f"root@{fleet.hosts['h3'].address}\n    ConnectTimeout",
        )
    )
    assert operator.run("status", "h1").returncode == 0
