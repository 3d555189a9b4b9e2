"""Host keys: a changed one fails its host alone, an unknown one is the inventory's choice."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fleet.lab.fleet import Fleet
from tests.fleet.operator import Operator


@pytest.fixture
def operator(fleet: Fleet, tmp_path: Path) -> Operator:
    return Operator(fleet, tmp_path)


def fingerprint(public_key: str) -> str:
    shown = subprocess.run(
        ["ssh-keygen", "-lf", "-"], input=public_key, capture_output=True, text=True, check=True
    )
    return shown.stdout.split()[1]


def test_a_changed_key_fails_its_host_alone(fleet: Fleet, operator: Operator) -> None:
    h1 = fleet.hosts["h1"]
    old = fingerprint(h1.state["host_key"])
    h1.renew(new_key=True)
    new = fingerprint(h1.state["host_key"])
    done = operator.run("status")
    assert done.returncode == 3, done.stderr
    known_hosts = operator.known_hosts
    (line,) = [
        number
        for number, text in enumerate(known_hosts.read_text().splitlines(), 1)
        if text.startswith(f"{h1.address} ")
    ]
    assert f"error: `h1`: the host key of `{h1.address}` has changed" in done.stdout
    assert f"known:   ssh-ed25519 {old} ({known_hosts}:{line})" in done.stdout
    assert f"offered: ssh-ed25519 {new}" in done.stdout
    assert f"ssh-keygen -R {h1.address} -f {known_hosts}" in done.stdout
    assert [row.split()[0] for row in done.stdout.splitlines() if " empty " in row] == [
        *("h2", "h2", "h3", "h3")
    ]
    alone = operator.run("status", "h1", "--json")
    assert alone.returncode == 4
    (host,) = json.loads(alone.stdout)["hosts"]
    assert (host["reachable"], "has changed" in host["error"]) == (False, True)


def test_the_command_of_the_hint_forgets_the_old_key(fleet: Fleet, operator: Operator) -> None:
    h1 = fleet.hosts["h1"]
    h1.renew(new_key=True)
    said = operator.run("status", "h1").stdout
    command = said[said.index("ssh-keygen -R") :].splitlines()[0]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert "is not known" in operator.run("status", "h1").stdout
    operator.write(host_keys="accept-new")
    assert operator.run("status", "h1").returncode == 0


def test_accept_new_does_not_accept_a_changed_key(fleet: Fleet, operator: Operator) -> None:
    operator.write(host_keys="accept-new")
    fleet.hosts["h1"].renew(new_key=True)
    before = operator.known_hosts.read_text()
    done = operator.run("status", "h1")
    assert done.returncode == 4
    assert "has changed" in done.stdout
    assert operator.known_hosts.read_text() == before


def test_an_unknown_key_is_refused_by_default(fleet: Fleet, operator: Operator) -> None:
    operator.known_hosts.write_text("")
    done = operator.run("status", "h1")
    assert done.returncode == 4
    shown = fingerprint(fleet.hosts["h1"].state["host_key"])
    assert f"offered: ssh-ed25519 {shown}" in done.stdout
    assert "`host_keys: accept-new`" in done.stdout
    assert operator.known_hosts.read_text() == ""


def test_accept_new_adds_the_keys_of_first_contact(fleet: Fleet, operator: Operator) -> None:
    before = sorted(operator.known_hosts.read_text().splitlines())
    operator.known_hosts.unlink()
    operator.write(host_keys="accept-new")
    assert operator.run("status").returncode == 0
    assert sorted(operator.known_hosts.read_text().splitlines()) == before
    operator.write(host_keys="strict")
    assert operator.run("status").returncode == 0


@pytest.mark.parametrize("form", ["hashed", "negated", "other type", "revoked", "authority"])
def test_forms_of_known_hosts(fleet: Fleet, operator: Operator, form: str) -> None:
    """Each line is accepted or refused as OpenSSH does."""
    h1, file = fleet.hosts["h1"], operator.known_hosts
    key = " ".join(h1.state["host_key"].split()[:2])
    lines = {
        "negated": f"*,!{h1.address} {key}\n",
        "other type": f"{h1.address} ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7\n",
        "revoked": f"{h1.address} {key}\n@revoked * {key}\n",
        "authority": f"@cert-authority * {key}\n",
    }
    if form == "hashed":
        subprocess.run(["ssh-keygen", "-Hf", str(file)], check=True, capture_output=True)
        assert "|1|" in file.read_text()
    else:
        file.write_text(lines[form])
    said = {
        "negated": "is not known",
        "other type": "has changed",
        "revoked": "is revoked",
        "authority": "(@cert-authority) are not checked",
    }
    done = operator.run("status", "h1")
    theirs = fleet.run("ssh", "-F", str(operator.ssh_config), "h1", "true")
    assert (done.returncode == 0) == (theirs.returncode == 0)
    assert said.get(form, "empty") in done.stdout


def test_no_file_of_known_hosts(operator: Operator, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "none", ignore_errors=True)
    operator.set_option("UserKnownHostsFile", str(tmp_path / "none" / "known_hosts"))
    assert "is not known" in operator.run("status", "h1").stdout
    operator.write(host_keys="accept-new")
    assert operator.run("status", "h1").returncode == 0
    assert (tmp_path / "none" / "known_hosts").stat().st_mode & 0o777 == 0o600
