"""What `serve` refuses before it loads anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_engine.cli.main import main
from ddtree_engine.errors import EngineError
from ddtree_engine.server.listener import listen
from ddtree_engine.server.settings import read_api_keys
from tests.engine.another_user import as_another_user, readable_copy


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model", "/nope", "--mode", "ar"], "model folder `/nope` does not exist"),
        (["--model", "/nope"], "mode `tree` needs a drafter"),
        (["--budget", "0"], "--budget must be from 1 to 1024, got 0"),
        (["--topk", "129"], "--topk must be from 1 to 128, got 129"),
        (["--port", "65536"], "--port must be from 0 to 65535"),
        (["--max-running", "0"], "--max-running must be from 1"),
        (["--drain-timeout", "nan"], "--drain-timeout must be from 0"),
        (["--served-model-name", "a\udcff"], "the name of the model is not Unicode text"),
        (["--served-model-name", ""], "--served-model-name is empty"),
        (["--api-key-file", "/nope"], "the API key file `/nope` can't be read"),
    ],
)
def test_settings_that_cannot_work(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *options]) == 1
    assert f"error: {says}" in capsys.readouterr().err


def test_a_drafter_that_is_none(
    checkpoint: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    target, _ = checkpoint
    assert main(["serve", "--model", str(target), "--drafter", str(target)]) == 1
    assert "names the unknown drafter architecture" in capsys.readouterr().err


def test_a_folder_of_another_user(
    checkpoint: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with readable_copy(checkpoint[0]) as folder:
        folder.chmod(0o600)
        with as_another_user():
            assert main(["serve", "--model", str(folder), "--mode", "ar"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: [Errno 13] Permission denied: '{folder}/config.json'"
    assert hint.startswith(f"hint: `namei -l {folder}/config.json` shows where user")


def test_port_in_use(checkpoint: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    target, _ = checkpoint
    with listen("127.0.0.1", 0) as owner:
        port = owner.getsockname()[1]
        assert main(["serve", "--model", str(target), "--mode", "ar", "--port", str(port)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: port {port} on 127.0.0.1 is in use",
        f"hint: `ss -ltnp 'sport = :{port}'` names the process; stop it or change --port",
    ]


def test_an_api_key_file_without_keys(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\n  \n")
    with pytest.raises(EngineError, match="has no key"):
        read_api_keys(tmp_path / "keys")


def test_addresses() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=f"port {port} on 127.0.0.1 is in use"):
            listen("127.0.0.1", port)
    with pytest.raises(EngineError, match="is not an address of this machine"):
        listen("no.such.host.invalid", 0)
    for impossible in ("a\udcff", "a" * 64, "a..b", "[::1]", ""):
        with pytest.raises(EngineError, match="is not an address of this machine") as error:
            listen(impossible, 0)
        assert "IPv6 without brackets" in str(error.value.hint)
    with pytest.raises(EngineError, match=r"can't listen on 192\.0\.2\.1") as error:
        listen("192.0.2.1", 0)
    assert "names this machine's addresses" in str(error.value.hint)
