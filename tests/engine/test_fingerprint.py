"""What a fingerprint tells apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_engine.fingerprint import PIECE, PIECES, fingerprint


def checkpoint(folder: Path, weights: bytes = b"weights", tokenizer: str = "{}") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text(tokenizer)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def large(folder: Path) -> Path:
    """A checkpoint of zeros, four times as large as what is read of it."""
    file = checkpoint(folder) / "model.safetensors"
    with file.open("wb") as stream:
        stream.truncate(4 * PIECES * PIECE)
    return file


def test_a_copy_has_the_same(tmp_path: Path) -> None:
    assert fingerprint(checkpoint(tmp_path / "a")) == fingerprint(checkpoint(tmp_path / "b"))


@pytest.mark.parametrize("changes", [{"weights": b"weightz"}, {"tokenizer": '{"a": 1}'}])
def test_every_file_counts(tmp_path: Path, changes: dict[str, bytes | str]) -> None:
    changed = checkpoint(tmp_path / "b", **changes)  # type: ignore[arg-type]
    assert fingerprint(checkpoint(tmp_path / "a")) != fingerprint(changed)


@pytest.mark.parametrize("offset", [0, -1])
def test_the_header_and_the_end_of_a_large_file_count(tmp_path: Path, offset: int) -> None:
    file = large(tmp_path / "a")
    before = fingerprint(file.parent)
    with file.open("r+b") as stream:
        stream.seek(offset, 2 if offset < 0 else 0)
        stream.write(b"\1")
    assert fingerprint(file.parent) != before


def test_a_large_file_that_grew_by_zeros_is_another(tmp_path: Path) -> None:
    file = large(tmp_path / "a")
    before = fingerprint(file.parent)
    with file.open("r+b") as stream:
        stream.truncate(4 * PIECES * PIECE + 1)
    assert fingerprint(file.parent) != before
