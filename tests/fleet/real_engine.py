"""The real engine for hosts whose GPUs are played: everything but the card itself is what it is.

A host with GPUs gets a torch for CUDA, which looks for a card of its own. So two things are changed
on their way to such a host: torch's wheel for the CPU is named after the CUDA build that the host
asks for, and says that it has machine code for its GPUs; and the engine, started for `cuda`,
computes on the CPU (`played_gpu.py`).
"""

import re
import zipfile
from pathlib import Path

from ddtreectl.env.wheel import engine_wheel
from tests.fleet import wheelhouse

MODEL = "ddtree-demo"
"""What the bundled model is called in requests."""

BUILD, CUDA, ARCHITECTURE = "cu130", "13.0", "sm_120"
UNUSED = ("torch/include/", "torch/share/", "torch/test/", "torch/bin/protoc", "torch/bin/test_")
"""What of torch is for those who compile against it or test it: three quarters of its files."""

PROGRAM = Path(__file__).with_name("played_gpu.py")


def engine(folder: Path) -> Path:
    """Write the wheel of the engine that computes on the CPU wherever it is started."""
    built = engine_wheel()
    source, path = folder / f"{built.name}.built", folder / built.name
    source.write_bytes(built.content)
    with zipfile.ZipFile(source) as wheel, zipfile.ZipFile(path, "w") as changed:
        for entry in wheel.infolist():
            content = wheel.read(entry)
            if entry.filename.endswith("/entry_points.txt"):
                content = content.replace(b"ddtree_engine.cli.main:", b"ddtree_engine.played_gpu:")
            changed.writestr(zipfile.ZipInfo(entry.filename), content)
        changed.writestr(zipfile.ZipInfo(f"ddtree_engine/{PROGRAM.name}"), PROGRAM.read_text())
    source.unlink()
    return path


def download(folder: Path) -> Path:
    """Fill a wheelhouse for hosts with played GPUs."""
    wheelhouse.download(folder)
    (wheel,) = folder.glob("torch-*.whl")
    _for_cuda(wheel)
    wheel.unlink()
    return folder


def _for_cuda(wheel: Path) -> None:
    """Write torch's wheel for the CPU as one for CUDA, beside it."""
    _, version, rest = wheel.name.split("-", 2)
    ours = f"{version.partition('+')[0]}+{BUILD}"
    before, info = f"torch-{version}.dist-info/", f"torch-{ours}.dist-info/"
    path = wheel.with_name(f"torch-{ours}-{rest}")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(path, "w", compresslevel=1) as changed:
        for entry in source.infolist():
            if entry.filename.startswith(UNUSED) or entry.is_dir():
                continue
            name, content = entry.filename.replace(before, info), source.read(entry)
            if name == f"{info}METADATA":
                content = _once(r"(?m)^Version: .*$", f"Version: {ours}", content)
            elif name == f"{info}RECORD":
                lines = content.decode().replace(before, info).splitlines(keepends=True)
                content = "".join(x for x in lines if not x.startswith(UNUSED)).encode()
            elif name == "torch/version.py":
                content = _once(r"(?m)^__version__ = .*$", f"__version__ = {ours!r}", content)
                content = _once(r"(?m)^cuda: .*$", f"cuda = {CUDA!r}", content)
            elif name == "torch/cuda/__init__.py":
                content += f"\n\ndef get_arch_list():\n    return [{ARCHITECTURE!r}]\n".encode()
            copy = zipfile.ZipInfo(name)
            copy.external_attr = entry.external_attr  # programs stay executable
            changed.writestr(copy, content, zipfile.ZIP_DEFLATED)


def _once(pattern: str, by: str, content: bytes) -> bytes:
    text, count = re.subn(pattern, by, content.decode())
    assert count == 1, pattern
    return text.encode()
