"""Commands and uploads on a host over SSH: to their end, past their deadline, and cut off."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtreectl.errors import StepError, UnreachableError
from ddtreectl.hosts.links import Links
from ddtreectl.hosts.protocol import DeadlineError
from ddtreectl.hosts.ssh import SshHost
from ddtreectl.inventory.loader import load
from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.host import Host
from tests.fleet.lab.waiting import until
from tests.fleet.operator import Operator

TARGET = "/opt/ddtree/file"


@pytest.fixture
def h1(fleet: Fleet) -> Host:
    return fleet.hosts["h1"]


@pytest.fixture
def hosts(fleet: Fleet, tmp_path: Path) -> Iterator[dict[str, SshHost]]:
    """h1 as ddtreectl has it: as root, and as a user with sudo."""
    operator = Operator(fleet, tmp_path)
    operator.set_option("ServerAliveInterval", "1")
    inventory = load(operator.inventory)
    links = Links()
    entry = inventory.hosts["h1"]
    entries = {"root": entry, "deploy": entry.model_copy(update={"user": "deploy"})}
    with fleet.network():
        yield {user: links.host("h1", e, inventory.ssh) for user, e in entries.items()}
    links.close()


@pytest.fixture(params=["root", "deploy"])
def host(request: pytest.FixtureRequest, hosts: dict[str, SshHost]) -> SshHost:
    return hosts[request.param]


def processes(h1: Host, text: str) -> list[str]:
    """The processes of a host whose command line has `text`, seen from outside of it."""
    found = []
    for folder in (h1.root / "proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if text in words:
            found.append(words)
    return found


# ---- commands ----


def test_a_command_is_passed_on_as_it_is(host: SshHost) -> None:
    words = ["a b", "$HOME", "it's", '"', "\\", "*", "", "new\nline", "ü", "-n", ";", "!1"]
    done = host.run(["printf", r"%s\0", *words], deadline=10)
    assert (done.returncode, done.stdout.split("\0")[:-1]) == (0, words)
    done = host.run(["sh", "-c", "id -un; echo oops >&2; exit 3"], deadline=10)
    assert (done.returncode, done.stdout, done.stderr) == (3, "root\n", "oops\n")
    assert host.run(["no-such-program"], deadline=10).returncode == 127
    assert host.run(["printenv", "A"], deadline=10, env={"A": "b $c"}).stdout == "b $c\n"
    with pytest.raises(ValueError, match="not the name of a variable"):
        host.run(["true"], deadline=10, env={"A B": ""})


def test_streams_larger_than_any_window(host: SshHost) -> None:
    text = "0123456789abcdef" * (5 << 16)  # 5 MiB
    done = host.run(["tee", "/dev/stderr"], deadline=60, stdin=text)
    assert done.stdout == text
    assert done.stderr == text
    assert host.run(["true"], deadline=10, stdin=text).returncode == 0  # which reads none of it


def test_a_command_past_its_deadline_ends_on_the_host(h1: Host, host: SshHost) -> None:
    with pytest.raises(DeadlineError, match=r"`sleep` on `h1` did not end within 0\.3 s"):
        host.run(["sleep", "4711"], deadline=0.3)
    assert processes(h1, "sleep 4711") == []
    assert host.run(["sh", "-c", "exit 124"], deadline=30).returncode == 124


def test_output_of_a_child_that_goes_on_is_not_waited_for(h1: Host, host: SshHost) -> None:
    done = host.run(["sh", "-c", "setsid sleep 4712 & echo started"], deadline=30)
    assert (done.returncode, done.stdout) == (0, "started\n")
    h1.says("pkill -f 'sleep 4712'")


def test_a_command_that_closes_its_output_is_waited_for(host: SshHost) -> None:
    done = host.run(["sh", "-c", "exec >&- 2>&-; sleep 0.5; exit 5"], deadline=30)
    assert done.returncode == 5


def test_lines_come_as_they_are_written(h1: Host, host: SshHost) -> None:
    lines = host.stream(["sh", "-c", "echo one; echo two >&2; exec sleep 4713"])
    assert [next(lines), next(lines)] == ["one\n", "two\n"]
    assert processes(h1, "sleep 4713")
    lines.close()
    until(lambda: not processes(h1, "sleep 4713"), "the command has ended with its reader")
    assert list(host.stream(["printf", r"a\nb"])) == ["a\n", "b"]


def test_a_reader_that_is_late_ends_the_command_too(h1: Host, host: SshHost) -> None:
    """All that it has written is there before the first of it is read."""
    command = host._command(["sh", "-c", "echo one; exec sleep 4714"], deadline=None)
    until(lambda: processes(h1, "sleep 4714"), "the command runs")
    output = command.output()
    assert next(output) == b"one\n"
    output.close()
    until(lambda: not processes(h1, "sleep 4714"), "the command has ended with its reader")


def test_a_reset_connection(h1: Host, host: SshHost) -> None:
    host.run(["true"], deadline=10)
    threading.Timer(0.5, h1.reset_connections).start()
    with pytest.raises(UnreachableError, match=r"`h1`: the connection .* lost while `sleep` ran"):
        host.run(["sleep", "5"], deadline=30)
    assert host.run(["hostname"], deadline=10).stdout == "h1\n"  # on a new connection


@pytest.mark.parametrize("fault", ["cut", "blackhole", "freeze"])
def test_a_host_that_falls_silent(h1: Host, hosts: dict[str, SshHost], fault: str) -> None:
    host = hosts["root"]
    host.run(["true"], deadline=10)
    lines = host.stream(["sh", "-c", "echo began; exec sleep 60"])
    assert next(lines) == "began\n"
    getattr(h1, fault)()
    with pytest.raises(UnreachableError, match="lost while `sh` ran"):
        next(lines)
    h1.heal()
    assert host.run(["hostname"], deadline=10).stdout == "h1\n"


def test_a_silent_command_on_a_host_that_answers_is_waited_for(host: SshHost) -> None:
    assert host.run(["sh", "-c", "sleep 2; echo done"], deadline=10).stdout == "done\n"


def test_a_reboot_between_two_commands(h1: Host, host: SshHost) -> None:
    host.run(["true"], deadline=10)
    h1.kill()
    h1.start()
    assert host.run(["hostname"], deadline=10).stdout == "h1\n"


# ---- files ----


def test_files(h1: Host, host: SshHost) -> None:
    content = os.urandom(3_000_000)
    host.put(TARGET, content, mode=0o600)
    assert host.read(TARGET) == content
    assert h1.says(f"stat -c '%a %U' {TARGET}") == "600 root"
    host.put(TARGET, b"")
    assert host.read(TARGET) == b""
    assert h1.says(f"stat -c %a {TARGET}") == "644"
    assert host.read("/no/such") is None
    with pytest.raises(StepError, match="`/etc` on `h1` cannot be read"):
        host.read("/etc")
    with pytest.raises(StepError, match="`/opt/ddtree` on `h1` cannot be written"):
        host.put("/opt/ddtree", b"over a folder")
    assert h1.says("ls -A /opt /opt/ddtree") == "/opt:\nddtree\n\n/opt/ddtree:\nfile"


def test_a_full_disk_is_named(h1: Host, host: SshHost) -> None:
    host.put(TARGET, b"old")
    h1.fill(64)
    with pytest.raises(StepError, match=r"on `h1` cannot be written: the disk is full on `/`") as e:
        host.put(TARGET, bytes(1_000_000))
    assert "B free, 1000000 B needed" in e.value.cause
    assert h1.says("ls -A /opt/ddtree; cat /opt/ddtree/file") == "file\nold"


def test_a_disk_that_fills_up_meanwhile(h1: Host, host: SshHost) -> None:
    host.put(TARGET, b"old")
    with h1.hold("mkdir", "/opt/ddtree") as hold:
        failure: list[StepError] = []

        def put() -> None:
            try:
                host.put(TARGET, bytes(1_000_000))
            except StepError as error:
                failure.append(error)

        thread = threading.Thread(target=put)
        thread.start()
        hold.reached()
        h1.fill(64)
        hold.release()
        thread.join(30)
    assert "the disk is full on `/`" in failure[0].message
    h1.heal()
    assert h1.says("ls -A /opt/ddtree; cat /opt/ddtree/file") == "file\nold"


def test_no_inodes(h1: Host, host: SshHost) -> None:
    h1.fill_inodes()
    with pytest.raises(StepError, match="no inodes are left on `/`"):
        host.put("/opt/elsewhere/file", b"content")
    h1.heal()
    assert h1.ssh("test -e /opt/elsewhere").returncode == 1


@pytest.mark.parametrize("fault", ["reset_connections", "kill"])
def test_an_upload_that_is_cut_off_leaves_nothing(
    fleet: Fleet, h1: Host, tmp_path: Path, fault: str
) -> None:
    """The operator's process is killed, or its connection reset, in the middle of an upload."""
    operator = Operator(fleet, tmp_path)
    h1.says(f"mkdir -p /opt/ddtree && echo old >{TARGET}")
    h1.slow(rate=4e6)
    code = (
        "from pathlib import Path\n"
        "from ddtreectl.hosts.links import Links; from ddtreectl.inventory.loader import load\n"
        f"i = load(Path({str(operator.inventory)!r}))\n"
        f"Links().host('h1', i.hosts['h1'], i.ssh).put({TARGET!r}, bytes(20_000_000))"
    )
    process = subprocess.Popen(
        fleet.inside(sys.executable, "-c", code), stderr=subprocess.PIPE, text=True
    )
    folder = h1.root / "opt/ddtree"
    until(lambda: list(folder.glob(".file.*")), "the upload has begun")
    process.kill() if fault == "kill" else h1.reset_connections()
    process.communicate(timeout=60)
    assert process.returncode != 0
    until(lambda: [p.name for p in folder.iterdir()] == ["file"], "nothing is left of it")
    assert (folder / "file").read_text() == "old\n"
