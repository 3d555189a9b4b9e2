"""What `ssh -G` prints, what the inventory adds to it, and work on many hosts at once."""

import threading
import time
from pathlib import Path

import pytest

from ddtreectl.errors import StepError, UnreachableError, UsageError
from ddtreectl.hosts.destination import parse, resolve, resolve_hop
from ddtreectl.hosts.host_keys import named
from ddtreectl.hosts.pool import on_each
from ddtreectl.inventory.ssh import SshSettings

CONFIG = """\
Include {folder}/more
Host gate
    HostName 10.0.0.1
    Port 2200
Host ct*
    User deploy
    ProxyJump admin@gate
    IdentitiesOnly yes
    ServerAliveInterval 7
    UserKnownHostsFile {folder}/%h.keys {folder}/known_hosts
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config").write_text(CONFIG.format(folder=tmp_path))
    (tmp_path / "more").write_text("Host ct200\n    HostName 10.1.2.200\n    ConnectTimeout 3\n")
    return tmp_path / "config"


def test_a_host_is_what_ssh_makes_of_it(config: Path) -> None:
    found = resolve("ct200", SshSettings(config=str(config)), None)
    assert str(found) == "deploy@10.1.2.200:22"
    assert found.jump == "admin@gate"
    assert (found.identities_only, found.patience, found.connect_timeout) == (True, 7.0, 3.0)
    assert found.known_hosts[:2] == (
        config.parent / "10.1.2.200.keys",
        config.parent / "known_hosts",
    )
    assert found.filed_under == "10.1.2.200"


def test_the_inventory_has_the_last_word(config: Path) -> None:
    key = config.parent / "key"
    settings = SshSettings(config=str(config), port=2222, identity=str(key), jump="other")
    with pytest.raises(UsageError, match=r"the identity .*/key is not there"):
        resolve("ct200", settings, "root")
    key.write_text("")
    found = resolve("ct200", settings, "root")
    assert str(found) == "root@10.1.2.200:2222"
    assert found.identities[0] == key
    assert found.jump == "other"
    assert found.filed_under == "[10.1.2.200]:2222"


@pytest.mark.parametrize(
    ("hop", "where"),
    [
        ("gate", "10.0.0.1:2200"),
        ("admin@gate:22", "admin@10.0.0.1:22"),
        ("ssh://admin@gate:22/", "admin@10.0.0.1:22"),
        ("admin@[fe80::1]:2222", "admin@[fe80::1]:2222"),
    ],
)
def test_bastions(config: Path, hop: str, where: str) -> None:
    assert str(resolve_hop(hop, SshSettings(config=str(config)))).endswith(where)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ssh cannot make anything of `h1`"):
        resolve("h1", SshSettings(config=str(tmp_path / "none")), None)


def test_what_ssh_does_not_print_has_a_default() -> None:
    found = parse("h1", "user root\nproxycommand none\nidentityagent none\n")
    assert (found.hostname, found.port, found.proxy_command, found.agent) == ("h1", 22, None, False)


@pytest.mark.parametrize(
    ("patterns", "name", "meant"),
    [
        ("h1,10.0.0.1", "10.0.0.1", True),
        ("H1", "h1", True),
        ("*.example.org,!bad.example.org", "good.example.org", True),
        ("*.example.org,!bad.example.org", "bad.example.org", False),
        ("[10.0.0.?]:2222", "[10.0.0.1]:2222", True),
        ("[10.0.0.1]:2222", "10.0.0.1", False),
        ("|1|not base64|x", "h1", False),
    ],
)
def test_names_of_known_hosts(patterns: str, name: str, meant: bool) -> None:
    assert named(patterns, name) is meant


def test_work_is_done_for_so_many_at_once() -> None:
    full = threading.Barrier(3)
    running: set[str] = set()
    most: list[int] = []

    def work(name: str) -> str:
        running.add(name)
        most.append(len(running))
        full.wait(10)  # three at a time, or it breaks
        running.remove(name)
        return name.upper()

    names = [f"h{number}" for number in range(9)]
    assert dict(on_each(names, work, at_once=3)) == {name: name.upper() for name in names}
    assert max(most) <= 3


def test_one_that_fails_or_hangs_hides_no_other() -> None:
    hang = threading.Event()

    def work(name: str) -> str:
        if name == "fails":
            raise StepError("no")
        if name == "hangs":
            hang.wait(30)
        return "fine"

    begun = time.monotonic()
    found = dict(on_each(["fails", "hangs", "a", "b"], work, at_once=2, deadline=0.3))
    assert time.monotonic() - begun < 30
    hang.set()
    assert isinstance(found["fails"], StepError)
    assert isinstance(found["hangs"], UnreachableError)
    assert (found["a"], found["b"]) == ("fine", "fine")


def test_a_mistake_in_the_work_is_not_an_outcome() -> None:
    def work(name: str) -> str:
        raise KeyError(name)

    with pytest.raises(KeyError):
        list(on_each(["h1"], work))
