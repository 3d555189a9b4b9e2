"""The lab keeps what it promises: hosts are real, faults happen, and all of it can be undone."""

import json
import socket
import subprocess
import time

import pytest

from ddtreectl.inventory.loader import load
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.host import Host
from tests.fleet.lab.shell import LabError
from tests.fleet.lab.waiting import until

KEPT = {
    *("dev", "etc", "home", "media", "mnt", "opt", "proc"),
    *("root", "run", "srv", "sys", "tmp", "usr", "var"),
}


@pytest.fixture
def h1(fleet: Fleet) -> Host:
    return fleet.hosts["h1"]


def connects(fleet: Fleet, host: Host, timeout: float = 1.0) -> bool:
    with fleet.network():
        try:
            socket.create_connection((host.address, 22), timeout).close()
        except OSError:
            return False
    return True


def begin(fleet: Fleet, command: str) -> "subprocess.Popen[str]":
    """Start a command on h1 over SSH."""
    argv = [*fleet.ssh("h1"), command]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_hosts_are_up(fleet: Fleet) -> None:
    for name, host in fleet.hosts.items():
        assert host.says("systemctl is-system-running --wait; hostname") == f"running\n{name}"
        assert host.says("cat /proc/1/comm") == "systemd"
    machine_ids = {host.says("cat /etc/machine-id") for host in fleet.hosts.values()}
    assert len(machine_ids) == 3


def test_hosts_show_nothing_of_this_machine(h1: Host) -> None:
    entries = set(h1.says("ls /").split())
    assert entries <= {*KEPT, "bin", "boot", "lib", "lib32", "lib64", "libx32", "sbin"}
    assert not h1.says(
        "find /root /home/deploy /opt /srv /usr/local/bin -type f -not -path '*/.ssh/*'"
    )
    assert not h1.says("find /etc/systemd/system /etc/cron.d -type f")
    assert h1.ssh("date -s 2030-01-01").returncode != 0
    assert h1.ssh("echo 1 >/proc/sys/vm/drop_caches").returncode != 0


def test_users(h1: Host) -> None:
    assert h1.says("id -un; sudo -n id -un", user="deploy") == "deploy\nroot"
    refused = h1.ssh("sudo -n id -un", user="deploy2")
    assert refused.returncode == 1
    assert "a password is required" in refused.stderr


def test_hosts_can_build_environments(h1: Host) -> None:
    h1.says(
        "python3 -c 'import ensurepip; ensurepip.version()' && "
        "python3 -m venv --without-pip /tmp/venv && cd /usr/share/python-wheels && "
        "PYTHONPATH=$(echo $PWD/pip-*.whl) /tmp/venv/bin/python -m pip --version",
        user="deploy",
    )
    for program in ("systemctl", "systemd-run", "journalctl", "ss", "df", "rsync", "timeout"):
        h1.says(f"command -v {program}")


def test_services_run_confined(h1: Host) -> None:
    h1.says(
        "systemd-run --quiet --wait --pipe -p DynamicUser=yes -p ProtectSystem=strict "
        "-p PrivateDevices=yes -p PrivateTmp=yes -p NoNewPrivileges=yes -p ProtectHome=yes "
        "-p SystemCallFilter=@system-service -p MemoryMax=64M -p StateDirectory=lab "
        "sh -c 'echo yes >$STATE_DIRECTORY/it && ! touch /usr/it 2>/dev/null && nvidia-smi -L'"
    )
    assert h1.says("cat /var/lib/lab/it") == "yes"
    h1.says("printf secret >/run/secret")
    assert (
        h1.says(
            "systemd-run --quiet --wait --pipe -p LoadCredential=key:/run/secret "
            "sh -c 'cat $CREDENTIALS_DIRECTORY/key'"
        )
        == "secret"
    )


def test_control_side_is_a_network_of_its_own(fleet: Fleet, h1: Host) -> None:
    show = ("ip", "-json", "-4", "address")
    outside = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert "10.77." not in outside
    assert '"local":"10.77.0.1"' in fleet.run(*show).stdout
    routes = json.loads(fleet.run("ip", "-json", "route").stdout)
    assert [route["dst"] for route in routes] == ["10.77.0.0/24"]  # and so no way out
    assert connects(fleet, h1)


def test_inventory_is_one_that_ddtreectl_reads(fleet: Fleet) -> None:
    inventory = load(fleet.folder / "inventory.yaml")
    assert sorted(inventory.hosts) == ["h1", "h2", "h3"]
    assert inventory.hosts["h2"].address == "10.77.0.12"
    assert sorted(inventory.hosts["h2"].slots) == ["gpu0", "gpu1"]


def test_hosts_reach_each_other(fleet: Fleet, h1: Host) -> None:
    assert h1.says("exec 3<>/dev/tcp/h2/22; head -c 4 <&3") == "SSH-"


def test_cut_link(fleet: Fleet, h1: Host) -> None:
    h1.cut()
    assert not connects(fleet, h1, 0.5)
    assert connects(fleet, fleet.hosts["h2"])
    h1.heal()
    assert connects(fleet, h1)


def test_black_hole_leaves_a_command_waiting(fleet: Fleet, h1: Host) -> None:
    with h1.hold("systemctl", "list-units") as hold, begin(fleet, "systemctl list-units") as ssh:
        hold.reached()
        h1.blackhole()
        hold.release()
        with pytest.raises(subprocess.TimeoutExpired):
            ssh.wait(0.5)
        assert not connects(fleet, h1, 0.5)
        h1.heal()
        assert ssh.wait(30) == 0


def test_connections_reset_in_the_middle_of_a_command(fleet: Fleet, h1: Host) -> None:
    with h1.hold("systemctl", "daemon-reload") as hold:
        with begin(fleet, "systemctl daemon-reload && touch /run/done") as ssh:
            assert "daemon-reload" in hold.reached()
            h1.reset_connections()
            _, said = ssh.communicate(timeout=30)
        assert ssh.returncode == 255
        assert "Broken pipe" in said or "reset by peer" in said
        assert connects(fleet, h1)
        hold.release()
    assert h1.says("systemctl is-system-running") == "running"  # calls that come later pass


def test_held_command_ignores_sigterm(fleet: Fleet, h1: Host) -> None:
    command = "timeout -k 0.2 0.1 systemctl show; echo $?"
    with h1.hold("systemctl", "show", stubborn=True) as hold, begin(fleet, command) as ssh:
        hold.reached()
        assert ssh.communicate(timeout=30)[0] == "137\n"


def test_hold_does_not_outlive_a_boot(h1: Host) -> None:
    h1.hold("systemctl", "is-enabled")
    h1.reboot()
    assert h1.says("systemctl is-enabled ssh") == "enabled"
    h1.heal()
    assert h1.ssh("test -e /usr/local/bin/systemctl").returncode == 1


def test_slow_rate(fleet: Fleet, h1: Host) -> None:
    h1.slow(rate=2e6)
    begun = time.monotonic()
    assert len(h1.says("head -c 250000 /dev/zero | tr '\\0' x")) == 250_000
    assert time.monotonic() - begun > 0.9  # a second at 2 Mbit/s


def test_slow_delay(fleet: Fleet, h1: Host) -> None:
    h1.slow(delay=0.1, jitter=0.02)
    begun = time.monotonic()
    assert connects(fleet, h1, 5)
    assert time.monotonic() - begun > 0.15
    h1.slow(delay=0.001, loss=1.0)
    assert not connects(fleet, h1, 0.3)


def test_kill_and_start_again(fleet: Fleet, h1: Host) -> None:
    h1.says("echo kept >/etc/kept; sync")
    h1.kill()
    assert not h1.up
    assert not connects(fleet, h1, 0.3)
    with pytest.raises(LabError, match="not running"):
        h1.log("nobody hears")
    h1.start()
    assert h1.says("cat /etc/kept") == "kept"


def test_reboot_has_a_boot_id_and_uptime_of_its_own(h1: Host) -> None:
    read = "cat /proc/sys/kernel/random/boot_id; cut -d. -f1 /proc/uptime"
    before = h1.says(read).split()
    h1.reboot()
    after = h1.says(read).split()
    assert before[0] != after[0]
    assert int(after[1]) < 60
    until(lambda: "-1" in h1.says("journalctl --list-boots -q"), "two boots in the journal")


def test_reboot_from_within(h1: Host) -> None:
    boots = h1.state["boots"]
    h1.ssh("systemctl reboot")
    until(lambda: h1.state["boots"] == boots + 1, "a boot more")
    h1.start()  # which waits for sshd
    assert h1.says("hostname") == "h1"


def test_shutdown(h1: Host) -> None:
    h1.stop()
    assert not h1.up


def test_full_disk(h1: Host) -> None:
    h1.fill(64)
    full = h1.ssh("dd if=/dev/zero of=/var/lib/big bs=1M count=1")
    assert "No space left on device" in full.stderr
    assert h1.says("systemctl is-system-running") == "running"
    h1.heal()
    h1.says("dd if=/dev/zero of=/var/lib/big bs=1M count=1; rm /var/lib/big")


def test_no_inodes_left(h1: Host) -> None:
    h1.fill_inodes()
    assert "No space left on device" in h1.ssh("touch /var/lib/new").stderr
    assert h1.says("df --output=iavail /var/lib | tail -1").strip() == "0"
    h1.heal()
    h1.says("touch /var/lib/new; rm /var/lib/new")


def test_freeze_and_thaw(fleet: Fleet, h1: Host) -> None:
    h1.freeze()
    with fleet.network(), socket.create_connection((h1.address, 22), 2) as connection:
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(4)
        h1.heal()
        connection.settimeout(10)
        assert connection.recv(4) == b"SSH-"


def test_kernel_log(h1: Host) -> None:
    line = "NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, GPU has fallen off the bus."
    h1.log(line)
    read = "journalctl --sync; journalctl -k -b -p err -o cat --no-pager"
    until(lambda: line in h1.says(read).splitlines(), "the line in journalctl -k")


def test_new_host_key(fleet: Fleet, h1: Host) -> None:
    h1.says("touch /etc/old")
    h1.renew()
    assert h1.ssh("test -e /etc/old").returncode == 1
    h1.renew(new_key=True)
    changed = h1.ssh("true")
    assert changed.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in changed.stderr
    fleet.trust_host_keys()
    assert h1.says("hostname") == "h1"
