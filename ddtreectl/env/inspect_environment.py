"""Says what an environment holds and what its compiled packages were built for.

ddtreectl does not run this file: its text is piped into the interpreter of the environment, on the
host. So it has the standard library alone, and prints one JSON object a line, each at once: what is
on disk first, then the outcome of every import. An import that crashes the interpreter thereby
loses nothing that was found before it, and is itself named by the line that announced it.

Why a parser of one's own and not pyelftools: an environment has gigabytes of shared objects, of
which a few kilobytes matter, so the parser must be where the files are; and the environment under
inspection is the one thing that cannot be asked to bring a package for its own inspection. What is
needed of ELF are two tables (System V ABI, "Program Header" and "Dynamic Section"); the test suite
holds the outcome against pyelftools.
"""

import importlib
import importlib.metadata
import json
import mmap
import os
import platform
import re
import struct
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_SONAME = 1, 5, 10, 14
GLIBC = re.compile(rb"\0GLIBC_(\d+)\.(\d+)(?=[\0.])")
TORCH_NAME = re.compile(rb"\0(_ZNK?(?:3c10|2at|5torch)[^\0]*)")
OLD_STRING = re.compile(rb"(?:^|[EKRPv_])Ss(?:$|[^a-z])")


def elf(path: Path) -> dict[str, Any] | None:
    """What a shared object needs, or None for a file that is none.

    Returns:
        `needed`, `soname`, `glibc` (the newest version that it asks for) and `cxx11_abi`.
    """
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return None
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None
        with data:
            try:
                return _dynamic(data)
            except (struct.error, KeyError, StopIteration, IndexError, OverflowError, ValueError):
                return None


def _dynamic(data: mmap.mmap) -> dict[str, Any] | None:
    wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
    word = "Q" if wide else "I"
    (offset,) = struct.unpack_from(order + word, data, 32 if wide else 28)
    size, count = struct.unpack_from(order + "HH", data, 54 if wide else 42)
    loads: list[tuple[int, int, int]] = []
    dynamic = None
    for at in range(offset, offset + size * count, size):
        if wide:
            kind, _, start, address, _, length = struct.unpack_from(order + "IIQQQQ", data, at)
        else:
            kind, start, address, _, length = struct.unpack_from(order + "IIIII", data, at)
        if kind == PT_LOAD:
            loads.append((address, start, length))
        elif kind == PT_DYNAMIC:
            dynamic = (start, length)
    if dynamic is None:
        return None
    entries: list[tuple[int, int]] = []
    for at in range(dynamic[0], sum(dynamic), struct.calcsize(order + word * 2)):
        tag, value = struct.unpack_from(order + word * 2, data, at)
        if tag == 0:
            break
        entries.append((tag, value))
    values = dict(entries)
    address = values[DT_STRTAB]
    table = next(
        start + address - first for first, start, length in loads if 0 <= address - first < length
    )
    strings = bytes(data[table : table + values[DT_STRSZ]])

    def text(at: int) -> str:
        return strings[at : strings.index(b"\0", at)].decode("utf-8", "replace")

    needed = [text(value) for tag, value in entries if tag == DT_NEEDED]
    uses_torch = any(name.startswith(("libc10", "libtorch")) for name in needed)
    return {
        "needed": needed,
        "soname": text(values[DT_SONAME]) if DT_SONAME in values else None,
        "glibc": max(((int(a), int(b)) for a, b in GLIBC.findall(strings)), default=None),
        "cxx11_abi": cxx11_abi(strings) if uses_torch else None,
    }


def cxx11_abi(strings: bytes) -> bool | None:
    """Which std::string the functions of torch take that a shared object refers to.

    Itanium C++ ABI: `Ss` abbreviates the old std::string; the new one is in the namespace
    `std::__cxx11`.
    """
    names = TORCH_NAME.findall(strings)
    if any(b"St7__cxx1112basic_string" in name for name in names):
        return True
    return False if any(OLD_STRING.search(name) for name in names) else None


def libraries(folder: Path) -> list[dict[str, Any]]:
    """Every shared object below a folder, with its path there."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if name.endswith(".so") or ".so." in name:
                try:
                    content = elf(path)
                except OSError:
                    continue
                if content is not None:
                    found.append({"path": str(path.relative_to(folder)), **content})
    return sorted(found, key=lambda entry: str(entry["path"]))


def normal(name: str) -> str:
    """The name of a distribution as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions() -> dict[str, dict[str, Any]]:
    """Version and requirements of each installed distribution."""
    found = {}
    for entry in importlib.metadata.distributions():
        name = entry.metadata["Name"]
        if name:
            found[normal(name)] = {"version": entry.version, "requires": entry.requires or []}
    return found


def modules_of(name: str, installed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The modules of what `name` requires, and then those that its own programs begin with."""
    if name not in installed:
        return []
    points = importlib.metadata.distribution(name).entry_points
    programs = [p.value.partition(":")[0] for p in points if p.group == "console_scripts"]
    required = set()
    for line in installed[name]["requires"]:
        match = re.match(r"[A-Za-z0-9._-]+", line)
        if match and "extra" not in line.partition(";")[2]:
            required.add(normal(match[0]))
    owned = importlib.metadata.packages_distributions()
    modules = [
        module
        for module, owners in sorted(owned.items())
        if required & set(map(normal, owners)) and not module.startswith("_")
    ]
    return modules + programs


def tell(**content: object) -> None:
    """Print a line at once."""
    print(json.dumps(content), flush=True)


def attempt(name: str) -> str | None:
    """Import a module. Returns None if that works, else type and text of what it raised."""
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - also a module that calls sys.exit
        return f"{type(error).__name__}: {error}"
    return None


def main(asked: Mapping[str, Any]) -> None:
    """Print the findings about the environment of this interpreter."""
    installed = distributions()
    tell(
        python=list(sys.version_info[:3]),
        tag=sys.implementation.cache_tag,
        extension=sysconfig.get_config_var("EXT_SUFFIX"),
        libc=" ".join(platform.libc_ver()),
        machine=platform.machine(),
        distributions=installed,
    )
    tell(libraries=libraries(Path(sysconfig.get_path("platlib"))))
    derived = modules_of(asked["distribution"], installed) if asked["derive"] else []
    for name in dict.fromkeys([asked["torch"], *asked["imports"], *derived]):
        tell(importing=name)
        said = attempt(name)
        tell(imported=name, error=said)
        if name == asked["torch"] and said is None:
            tell(torch=_of_torch(sys.modules[name]))
    tell(complete=True)


def _of_torch(torch: Any) -> dict[str, object]:
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        "arch_list": list(torch.cuda.get_arch_list()),
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
