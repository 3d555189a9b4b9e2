"""Labs of other shapes: a bastion, another port, shared folders, no GPUs; and what may not be."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.lab.fleet import Fleet
from tests.fleet.lab.shell import LabError
from tests.fleet.lab.topology import HostSpec, Topology


@pytest.fixture(scope="module")
def odd_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """h3 is behind h1 and has its sshd elsewhere; h2 has no GPU, and sees folders from outside."""
    wheels = tmp_path_factory.mktemp("wheels")
    wheels.chmod(0o755)
    (wheels / "a.whl").write_text("wheel")
    shared = {"/srv/wheels": str(wheels), sys.base_prefix: sys.base_prefix}
    hosts = [
        HostSpec("h1"),
        HostSpec("h2", gpus=0, ssh_port=2222, shared=shared, disk="64M"),
        HostSpec("h3", behind="h1", ssh_port=2022),
    ]
    with Fleet.boot(hosts) as fleet:
        yield fleet


def test_host_behind_a_bastion(odd_fleet: Fleet) -> None:
    h3 = odd_fleet.hosts["h3"]
    assert h3.address == "10.77.1.13"
    assert h3.says("systemctl is-system-running --wait; hostname") == "running\nh3"
    direct = odd_fleet.run("ssh", "-o", "ConnectTimeout=1", "-p", "2022", f"root@{h3.address}")
    assert direct.returncode == 255
    assert h3.says("echo $SSH_CONNECTION").startswith("10.77.1.11 ")


def test_another_port(odd_fleet: Fleet) -> None:
    h2 = odd_fleet.hosts["h2"]
    assert "2222" in h2.says("echo $SSH_CONNECTION")
    known = (odd_fleet.folder / "known_hosts").read_text()
    assert f"[{h2.address}]:2222 ssh-ed25519 " in known


def test_host_without_gpus(odd_fleet: Fleet) -> None:
    h2 = odd_fleet.hosts["h2"]
    assert h2.ssh("nvidia-smi").returncode == 127
    assert h2.ssh("test -e /sys/module/nvidia -o -e /dev/nvidia0").returncode == 1


def test_disk_has_the_size_that_was_asked_for(odd_fleet: Fleet) -> None:
    assert odd_fleet.hosts["h2"].says("df -k --output=size / | tail -1").strip() == str(64 << 10)


def test_shared_folders_are_read_only(odd_fleet: Fleet) -> None:
    h2 = odd_fleet.hosts["h2"]
    assert h2.says("cat /srv/wheels/a.whl", user="deploy") == "wheel"
    assert "Read-only" in h2.ssh("touch /srv/wheels/b.whl").stderr


def test_hosts_can_share_the_interpreter_of_the_tests(odd_fleet: Fleet) -> None:
    interpreter = f"{sys.base_prefix}/bin/python3"
    read = f"{interpreter} -c 'import ssl, sys; print(sys.version)'"
    assert odd_fleet.hosts["h2"].says(read, user="deploy") == sys.version


def test_two_labs_at_once(odd_fleet: Fleet) -> None:
    with Fleet.boot(1) as other:
        assert other.hosts["h1"].address == odd_fleet.hosts["h1"].address
        ids = {lab.hosts["h1"].says("cat /etc/machine-id") for lab in (other, odd_fleet)}
        assert len(ids) == 2


def test_a_lab_that_cannot_boot_leaves_nothing(tmp_path: Path) -> None:
    broken = HostSpec("h1", shared={"/srv/wheels": str(tmp_path / "absent")})
    with pytest.raises(LabError, match=r"(?s)no lab:.*special device.*absent does not exist"):
        Fleet.boot([broken], folder=tmp_path / "lab")
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ([HostSpec("h1"), HostSpec("h1")], "same name"),
        ([HostSpec("h1", behind="h2")], "not in front"),
        (
            [HostSpec("h1"), HostSpec("h2", behind="h1"), HostSpec("h3", behind="h2")],
            "not in front",
        ),
        (201, "200"),
    ],
)
def test_impossible_topologies(hosts: int | list[HostSpec], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Topology.of(hosts)
