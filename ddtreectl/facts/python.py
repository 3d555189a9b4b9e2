"""The interpreter that environments are made from, and the ABI that it has."""

from dataclasses import dataclass
from shlex import quote

from ddtreectl.facts.output import Output, json_object

_SCRIPT = """
import os, sys, sysconfig
from importlib.machinery import PathFinder
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION")
except (ValueError, OSError):
    libc = None
if not libc:
    import platform
    libc = " ".join(platform.libc_ver())
complete = PathFinder.find_spec("ensurepip") and PathFinder.find_spec("venv")
print('{"version": %s, "implementation": "%s", "platform": "%s", "libc": "%s", "venv": %s}' % (
    list(sys.version_info[:3]), sys.implementation.cache_tag, sysconfig.get_platform(), libc,
    "true" if complete else "false"))
"""
"""Without `json` and `platform`, which take three times as long to import as this to run."""


@dataclass(frozen=True)
class Python:
    """An interpreter.

    Attributes:
        version: major, minor, micro.
        abi: what compiled packages must fit: interpreter tag, platform, C library.
        has_venv: whether it can make virtual environments.
    """

    version: tuple[int, int, int]
    abi: str
    has_venv: bool

    @property
    def machine(self) -> str:
        """What the host's processor is called: `x86_64`."""
        platform = next((w for w in self.abi.split(" ") if w.startswith("linux-")), "linux-x86_64")
        return platform.removeprefix("linux-")

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The version of the C library; None where it is not glibc."""
        name, _, version = self.abi.rpartition(" ")
        major, _, minor = version.partition(".")
        if not name.endswith(" glibc") or not (major.isdecimal() and minor.isdecimal()):
            return None
        return int(major), int(minor)


def command(python: str) -> str:
    """Ask the interpreter `python` what it is."""
    return f"{quote(python)} -IS -c {quote(_SCRIPT)}"


def parse(output: Output) -> Python | None:
    """The interpreter, or None where there is none."""
    content = json_object(output.stdout)
    version = content.get("version")
    if not (isinstance(version, list) and len(version) == 3):
        return None
    parts = [str(content.get(key) or "?") for key in ("implementation", "platform", "libc")]
    try:
        numbers = (int(version[0]), int(version[1]), int(version[2]))
    except (TypeError, ValueError):
        return None
    return Python(numbers, " ".join(parts), content.get("venv") is True)
