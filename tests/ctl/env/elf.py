"""Writes small shared objects that the dynamic linker loads, or refuses for the reason wanted.

No compiler is needed: an object is one segment with a dynamic section, its tables, and one word of
data for each symbol (System V ABI, chapter 5; for versions, the LSB, "Symbol Versioning").
"""

import platform
import struct
from collections.abc import Sequence

HEADER, PROGRAM_HEADER = 64, 56
MACHINES = {"x86_64": (62, 1), "aarch64": (183, 257)}
"""e_machine, and the relocation that stores a symbol's address."""

NEEDED, HASH, STRTAB, SYMTAB, RELA, RELASZ, RELAENT = 1, 4, 5, 6, 7, 8, 9
STRSZ, SYMENT, SONAME, RUNPATH = 10, 11, 14, 29
VERSYM, VERNEED, VERNEEDNUM = 0x6FFFFFF0, 0x6FFFFFFE, 0x6FFFFFFF


def shared_object(
    *,
    needed: Sequence[str] = (),
    soname: str | None = None,
    runpath: str | None = None,
    defines: Sequence[str] = (),
    uses: Sequence[str] = (),
    glibc: str | None = None,
) -> bytes:
    """The content of a shared object.

    Args:
        needed: the libraries that it is linked with.
        soname: its own name.
        runpath: where `needed` is looked for.
        defines: symbols that it has.
        uses: symbols that others have to have.
        glibc: the version of glibc that it asks for, such as `2.34`.
    """
    needed = [*needed, *(["libc.so.6"] if glibc else [])]
    version = [f"GLIBC_{glibc}"] if glibc else []
    words = [*needed, *filter(None, [soname, runpath]), *defines, *uses, *version]
    strings, at = b"\0", {}
    for word in words:
        at.setdefault(word, len(strings))
        strings += word.encode() + b"\0"
    strings += bytes(-len(strings) % 8)
    symbols = [*defines, *uses]
    start = HEADER + 2 * PROGRAM_HEADER
    sizes = {
        "strings": len(strings),
        "symbols": 24 * (1 + len(symbols)),
        "hash": 4 * (3 + 1 + len(symbols)) + (-4 * (4 + len(symbols)) % 8),
        "versions": 2 * (1 + len(symbols)) + (-2 * (1 + len(symbols)) % 8),
        "wanted": 32,
        "relocations": 24 * len(uses),
        "data": 8 * max(len(symbols), 1),
    }
    place: dict[str, int] = {}
    for name, size in sizes.items():
        place[name] = start
        start += size
    data = {name: place["data"] + 8 * number for number, name in enumerate(symbols)}
    kind, relocation = MACHINES[platform.machine()]
    table = bytes(24)
    for name in symbols:
        defined = name in defines
        table += struct.pack(
            "<IBBHQQ", at[name], 0x11 if defined else 0x10, 0, int(defined),
            data[name] if defined else 0, 8 if defined else 0,
        )  # fmt: skip
    chain = [0, *range(2, len(symbols) + 1), 0] if symbols else [0]
    hashes = struct.pack(f"<{3 + len(chain)}I", 1, len(chain), min(len(symbols), 1), *chain)
    versions = struct.pack(f"<{1 + len(symbols)}H", 0, *[1] * len(symbols))
    wanted = bytes(32)
    if glibc:
        wanted = struct.pack("<HHIII", 1, 1, at["libc.so.6"], 16, 0) + struct.pack(
            "<IHHII", _hash(version[0]), 0, 2, at[version[0]], 0
        )
    relocations = b"".join(
        struct.pack("<QQq", data[name], number << 32 | relocation, 0)
        for number, name in enumerate(symbols, 1)
        if name in uses
    )
    entries = [
        *((NEEDED, at[name]) for name in needed),
        *([(SONAME, at[soname])] if soname else []),
        *([(RUNPATH, at[runpath])] if runpath else []),
        *((HASH, place["hash"]), (STRTAB, place["strings"]), (STRSZ, len(strings))),
        *((SYMTAB, place["symbols"]), (SYMENT, 24)),
        *([(RELA, place["relocations"]), (RELASZ, 24 * len(uses)), (RELAENT, 24)] if uses else []),
    ]  # fmt: skip
    if glibc:
        entries += [(VERSYM, place["versions"]), (VERNEED, place["wanted"]), (VERNEEDNUM, 1)]
    entries.append((0, 0))
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    end = start + len(dynamic)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, kind, 1, 0, HEADER, 0, 0, HEADER,
        PROGRAM_HEADER, 2, 64, 0, 0,
    )  # fmt: skip
    load = struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, end, end, 4096)
    table_of_entries = struct.pack(
        "<IIQQQQQQ", 2, 6, start, start, start, len(dynamic), len(dynamic), 8
    )
    content = header + load + table_of_entries
    for name, part in (
        ("strings", strings),
        ("symbols", table),
        ("hash", hashes),
        ("versions", versions),
        ("wanted", wanted),
        ("relocations", relocations),
        ("data", b""),
    ):
        content += part + bytes(sizes[name] - len(part))
    return content + dynamic


def _hash(name: str) -> int:
    """The hash of a version's name (System V ABI, "Hash Table")."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high if high else value
    return value & 0xFFFFFFFF
