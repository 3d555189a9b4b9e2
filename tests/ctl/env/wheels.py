"""Wheels as small as they can be, whose shared objects are linked like those of the real ones."""

import platform
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.ctl.env.elf import shared_object

TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
NEW_STRING = "_ZN3c106detail14torchCheckFailERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
OLD_STRING = "_ZN3c106detail14torchCheckFailERKSs"
CUDA = {"cu126": "12.6", "cu128": "12.8", "cu130": "13.0"}
ARCHITECTURES = {
    "cu126": ["sm_70", "sm_80", "sm_90"],
    "cu128": ["sm_70", "sm_80", "sm_90", "sm_100", "sm_120"],
    "cu130": ["sm_80", "sm_90", "sm_100", "sm_120"],
}

_LOAD = """\
import ctypes as _c, pathlib as _p
_here = _p.Path(__file__).resolve().parent
def _load(*parts):
    return _c.CDLL(str(_here.joinpath(*parts)), mode=_c.RTLD_GLOBAL)
"""


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    *,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    scripts: Mapping[str, str] | None = None,
) -> Path:
    """Write a wheel with `files`, and return where it is. The same arguments give the same hash."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    content: dict[str, str | bytes] = {
        **files,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    if scripts:
        lines = "".join(f"{key} = {value}\n" for key, value in scripts.items())
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}"
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, text in content.items():
            archive.writestr(zipfile.ZipInfo(entry), text)
    return path


def platform_tag(python: str = TAG) -> str:
    return f"{python}-{python}-linux_{platform.machine()}"


def cuda_runtime(folder: Path, major: int) -> Path:
    """The package that has libcudart; its name has lost the suffix with CUDA 13."""
    library = shared_object(soname=f"libcudart.so.{major}", defines=["cudaLaunchKernel"])
    if major == 12:
        path = "nvidia/cuda_runtime/lib/libcudart.so.12"
        return wheel(folder, "nvidia-cuda-runtime-cu12", "12.8.90", {path: library})
    path = f"nvidia/cu{major}/lib/libcudart.so.{major}"
    return wheel(folder, "nvidia-cuda-runtime", f"{major}.0.96", {path: library})


def torch(
    folder: Path, build: str, version: str = "2.13.0", *, label: bool = True, python: str = TAG
) -> Path:
    """A torch that loads its libraries as the real one does."""
    cuda = CUDA.get(build)
    major = int(cuda.partition(".")[0]) if cuda else 0
    preload = {
        0: "",
        12: "_load('..', 'nvidia/cuda_runtime/lib/libcudart.so.12')\n",
        13: "_load('..', 'nvidia/cu13/lib/libcudart.so.13')\n",
    }[major]
    source = (
        f"{_LOAD}{preload}_load('lib', 'libc10.so')\n"
        f"__version__ = {f'{version}+{build}'!r}\n"
        f"class version:\n    cuda = {cuda!r}\n"
        "class _C:\n    _GLIBCXX_USE_CXX11_ABI = True\n"
        f"class cuda:\n    @staticmethod\n    def get_arch_list():\n"
        f"        return {ARCHITECTURES.get(build, [])!r}\n"
    )
    needed = [f"libcudart.so.{major}"] if cuda else []
    files: dict[str, str | bytes] = {
        "torch/__init__.py": source,
        "torch/lib/libc10.so": shared_object(
            soname="libc10.so", needed=needed, defines=[NEW_STRING]
        ),
    }
    runtime = {
        0: [],
        12: ["nvidia-cuda-runtime-cu12==12.8.90"],
        13: ["nvidia-cuda-runtime==13.0.96"],
    }
    full = f"{version}+{build}" if label else version
    tag = platform_tag(python)
    return wheel(folder, "torch", full, files, requires=runtime[major], tag=tag)


def kernels(
    folder: Path,
    build: str,
    *,
    symbol: str = NEW_STRING,
    glibc: str | None = None,
    python: str = TAG,
) -> Path:
    """A package of compiled kernels for torch, as sgl-kernel and flash-attn are."""
    cuda = CUDA.get(build)
    needed = ["libc10.so", *([f"libcudart.so.{cuda.partition('.')[0]}"] if cuda else [])]
    library = shared_object(needed=needed, uses=[symbol], glibc=glibc)
    files: dict[str, str | bytes] = {
        "fast_kernels/__init__.py": f"import torch\n{_LOAD}_load('ops.so')\n",
        "fast_kernels/ops.so": library,
    }
    return wheel(folder, "fast-kernels", "0.4.5", files, tag=platform_tag(python))


def module(folder: Path, name: str, version: str, text: str = "") -> Path:
    """A package of one module."""
    return wheel(folder, name, version, {f"{name.replace('-', '_')}.py": text})


ENGINE_REQUIRES = ("torch>=2.6", "fast-kernels", "soundfile", "xgrammar==0.2.1")


def engine(folder: Path, does: str = "print('served')") -> Path:
    """A `ddtree-engine` that requires what the others are, and that does as little."""
    files = {
        "ddtree_engine/__init__.py": "",
        "ddtree_engine/main.py": f"import fast_kernels\n\ndef main():\n    {does}\n",
    }
    requires = ENGINE_REQUIRES
    scripts = {"ddtree-engine": "ddtree_engine.main:main"}
    return wheel(folder, "ddtree-engine", "0.1.0", files, requires=requires, scripts=scripts)
