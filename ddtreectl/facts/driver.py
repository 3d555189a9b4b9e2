"""The NVIDIA driver of a host, from what the kernel says of it and without touching a GPU.

`nvidia-smi` can hang for ever on a GPU that is lost, so it is asked last, for as long as a few
seconds, and only for what the kernel has not told.
"""

import re
from dataclasses import dataclass
from shlex import quote

from ddtreectl.facts.output import Output

_VERSION = re.compile(r"\d+(?:\.\d+){1,3}")
_HEADINGS = frozenset({"module", "proc", "present", "library", "uvm", "smi"})
SMI_TIMEOUT = 5


@dataclass(frozen=True)
class Driver:
    """The driver.

    Attributes:
        version: of the kernel module that is loaded; None where none is.
        user_space: of the user-space part, `libcuda.so.1`; None where there is none.
        gpus: how many NVIDIA GPUs the kernel sees, with a driver or without.
        uvm: whether /dev/nvidia-uvm, which CUDA needs, is there beside /dev/nvidiactl.
    """

    version: str | None = None
    user_space: str | None = None
    gpus: int = 0
    uvm: bool = True

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The version as numbers, which compare as versions do."""
        return version_numbers(self.version) if self.version else None


def version_numbers(text: str) -> tuple[int, ...]:
    """`525.60.13` as (525, 60, 13)."""
    return tuple(int(part) for part in text.split(".") if part.isascii() and part.isdecimal())


def command(root: str = "") -> str:
    """Print the driver's version from each source that has it, and the GPUs that the kernel sees.

    The order of the sources: the module in /sys, /proc/driver/nvidia, then nvidia-smi.

    Args:
        root: the folder in which /sys, /proc and /dev are.
    """
    module = quote(f"{root}/sys/module/nvidia/version")
    proc = quote(f"{root}/proc/driver/nvidia")
    device = quote(f"{root}/dev/")
    smi = "nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null"
    # Class 0x03 is a display controller, which every GPU is, also one that shows no picture.
    pci = (
        f"grep -l 0x10de {quote(root)}/sys/bus/pci/devices/*/vendor 2>/dev/null "
        '| while read -r f; do d=${f%/vendor}; read -r c <"$d/class"; '
        'case $c in 0x03*) echo "${d##*/}";; esac; done'
    )
    return (
        f"echo module; cat {module} 2>/dev/null; "
        f"echo proc; head -n 1 {proc}/version 2>/dev/null; "
        f"echo present; {{ {pci}; ls {proc}/gpus 2>/dev/null; }} | sort -u; "
        "echo library; PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null "
        "| sed -n 's/.*libcuda\\.so\\.1 .*=> //p' | head -n 1 | xargs -r readlink -f; "
        f"echo uvm; [ ! -e {device}nvidiactl ] || [ -e {device}nvidia-uvm ] || echo missing; "
        f"[ -e {module} ] || [ -e {proc}/version ] || ! command -v nvidia-smi >/dev/null "
        f"|| {{ echo smi; timeout -s KILL {SMI_TIMEOUT} sh -c {quote(smi)} | head -n 1; }}; true"
    )


def parse(output: Output) -> Driver:
    """The driver; total over whatever the sources say."""
    said: dict[str, list[str]] = {heading: [] for heading in _HEADINGS}
    heading = ""
    for line in output.lines:
        if line in _HEADINGS:
            heading = line
        elif heading:
            said[heading].append(line.strip())
    versions = (_first(said["module"]), _of_proc(said["proc"]), _first(said["smi"]))
    present = {entry for entry in said["present"] if ":" in entry}
    library = "\n".join(said["library"]).rpartition("libcuda.so.")[2]
    return Driver(
        version=next((version for version in versions if version), None),
        user_space=_first([library]),
        gpus=len(present),
        uvm="missing" not in said["uvm"],
    )


def _of_proc(lines: list[str]) -> str | None:
    """`NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu …` has it between blanks."""
    for line in lines:
        for part in line.split("  ")[1:]:
            if _VERSION.fullmatch(part.strip()):
                return part.strip()
    return None


def _first(lines: list[str]) -> str | None:
    """The first line, where it is a version."""
    return lines[0] if lines and _VERSION.fullmatch(lines[0]) else None
