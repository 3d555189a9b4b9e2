"""The parser of shared objects, held against pyelftools and against the dynamic linker."""

import ctypes
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from hypothesis import example, given
from hypothesis import strategies as st

from ddtreectl.env.inspect_environment import cxx11_abi, elf
from tests.ctl.env.elf import shared_object
from tests.ctl.env.wheels import NEW_STRING, OLD_STRING


def by_pyelftools(path: Path) -> tuple[list[str], str | None]:
    needed, soname = [], None
    with path.open("rb") as file:
        for segment in ELFFile(file).iter_segments():
            if isinstance(segment, DynamicSegment):
                for tag in segment.iter_tags():
                    if tag.entry.d_tag == "DT_NEEDED":
                        needed.append(tag.needed)
                    elif tag.entry.d_tag == "DT_SONAME":
                        soname = tag.soname
    return needed, soname


def installed() -> list[Path]:
    """Shared objects of packages that are installed here: torch's, numpy's, those of Rust."""
    folder = Path(sysconfig.get_path("platlib"))
    return sorted(path for path in folder.rglob("*.so*") if path.suffix != ".py")[::4]


def test_the_same_as_pyelftools_for_every_fourth_library_that_is_installed() -> None:
    paths = installed()
    assert len(paths) > 10
    for path in paths:
        found = elf(path)
        assert found is not None
        assert (found["needed"], found["soname"]) == by_pyelftools(path), path


def test_the_linker_and_both_parsers_agree_on_what_the_tests_write(tmp_path: Path) -> None:
    first, second = tmp_path / "libfirst.so.12", tmp_path / "second.so"
    first.write_bytes(shared_object(soname="libfirst.so.12", defines=["here", "there"]))
    second.write_bytes(
        shared_object(needed=["libfirst.so.12"], runpath="$ORIGIN", uses=["there"], glibc="2.4")
    )
    assert ctypes.CDLL(str(second)) is not None
    found = elf(second)
    assert found is not None
    assert found["glibc"] == (2, 4)
    assert (found["needed"], found["soname"]) == by_pyelftools(second)
    assert found["needed"] == ["libfirst.so.12", "libc.so.6"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"needed": ["libcudart.so.99"]}, "libcudart.so.99: cannot open shared object file"),
        ({"uses": [OLD_STRING]}, f"undefined symbol: {OLD_STRING}"),
        ({"glibc": "2.99"}, "version `GLIBC_2.99' not found"),
    ],
)
def test_the_linker_refuses_what_is_meant_to_be_wrong(
    content: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.so"
    path.write_bytes(shared_object(**content))
    with pytest.raises(OSError, match=says.replace(".", r"\.")):
        ctypes.CDLL(str(path))


@pytest.mark.parametrize(
    ("name", "abi"),
    [
        (NEW_STRING, True),
        (OLD_STRING, False),
        ("_ZN3c105ErrorC2ENS_14SourceLocationESs", False),
        ("_ZN3c104cuda9SetDeviceEi", None),
        ("_ZN3c1010SomethingSsilentEv", None),
        ("_ZN5other4nameESs", None),
    ],
)
def test_the_string_that_a_symbol_of_torch_takes(name: str, abi: bool | None) -> None:
    assert cxx11_abi(b"\0" + name.encode() + b"\0") is abi


@given(data=st.binary(max_size=300), cut=st.integers(0, 600), at=st.integers(0, 600))
@example(data=b"\0\0\0\0\0\0\x80", cut=160, at=129)  # an offset of 2**63
def test_a_damaged_library_is_no_library(
    data: bytes, cut: int, at: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    whole = shared_object(needed=["libc.so.6"], soname="x", defines=["a"], glibc="2.4")
    path.write_bytes((whole[:at] + data + whole[at + len(data) :])[:cut] if cut else data)
    found = elf(path)
    assert found is None or isinstance(found["needed"], list)
