"""Wheelhouses with things in them that are no wheels, or damaged ones."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtreectl.env.wheelhouse import Wheelhouse
from ddtreectl.errors import RefusedError, UsageError
from ddtreectl.facts.python import Python

PYTHON = Python((3, 11, 2), "cpython-311 linux-x86_64 glibc 2.36", has_venv=True)
TORCH = "torch-2.13.0-cp311-cp311-linux_x86_64.whl"
METADATA = "torch-2.13.0.dist-info/METADATA"


def _without_metadata(path: Path) -> None:
    with zipfile.ZipFile(path / TORCH, "w") as archive:
        archive.writestr("torch/__init__.py", "")


def _with_damaged_metadata(path: Path) -> None:
    with zipfile.ZipFile(path / TORCH, "w") as archive:
        archive.writestr(METADATA, "Name: torch\n" * 9)
    content = (path / TORCH).read_bytes()
    (path / TORCH).write_bytes(content.replace(b"Name: torch", b"Name: TORCH", 1))


def _packed_in_an_unknown_way(path: Path) -> None:
    with zipfile.ZipFile(path / TORCH, "w") as archive:
        archive.writestr(METADATA, "Name: torch\n")
    content = bytearray((path / TORCH).read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 10 : at + 12] = content[8:10] = b"\x63\x00"  # method 99
    (path / TORCH).write_bytes(content)


JUNK: dict[str, tuple[Callable[[Path], object], str]] = {
    "no name of a wheel": (lambda p: (p / "torch.whl").touch(), "is not named as a wheel is"),
    "no version": (
        lambda p: (p / "torch-new-py3-none-any.whl").touch(),
        "is not named as a wheel is",
    ),
    "an empty file": (lambda p: (p / TORCH).touch(), "is damaged"),
    "a folder": (lambda p: (p / TORCH).mkdir(), "is damaged"),
    "a page of a proxy": (lambda p: (p / TORCH).write_text("<html>403</html>"), "is damaged"),
    "no metadata": (_without_metadata, "is damaged"),
    "damaged metadata": (_with_damaged_metadata, "is damaged"),
    "another packing": (_packed_in_an_unknown_way, "is damaged"),
}


@pytest.mark.parametrize("name", JUNK)
def test_what_is_no_wheel_is_named(name: str, tmp_path: Path) -> None:
    make, says = JUNK[name]
    make(tmp_path)
    with pytest.raises(RefusedError, match=says) as caught:
        Wheelhouse.open(tmp_path).torches("2.13.0", PYTHON)
    assert str(tmp_path) in caught.value.message


def test_a_list_that_is_no_text(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / TORCH, "w") as archive:
        archive.writestr(METADATA, "Name: torch\n")
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfet\0")
    with pytest.raises(UsageError, match="cannot be read as text"):
        Wheelhouse.open(tmp_path)


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    for build in ("", "-1"):  # two packings of one version
        with zipfile.ZipFile(tmp_path / f"torch-2.13.0{build}-py3-none-any.whl", "w") as archive:
            archive.writestr(METADATA, "Name: torch\nRequires-Dist: nvidia-cuda-runtime==13.0.96\n")
    (tmp_path / "torch-2.13.0.tar.gz").touch()
    (tmp_path / "notes.txt").touch()
    found = Wheelhouse.open(tmp_path)
    assert len(found.wheels) == 2
    assert set(found.torches("2.13.0", PYTHON)) == {"cu130"}
