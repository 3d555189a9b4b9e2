"""What the kernel log says of GPUs since boot: Xid errors, and GPUs that fell off the bus.

Errors of NVSwitches (SXid) are there as well, where they say that they are fatal.

The journal has all of the boot; the kernel's own buffer, which is asked where there is no journal,
forgets. Not every GPU that falls off the bus is given an Xid, and some of the messages are written
over three lines.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ddtreectl.facts import pci
from ddtreectl.facts.output import Output, as_int

DEADLINE = 8.0
READ, LINES = 50_000, 4000
"""The newest lines of a boot that are read, and how many of those about GPUs are passed on."""

ECHO = 5.0
"""Seconds within which an error with a number and the same in words are one."""

TIMES = 64
"""The newest occurrences of an error whose times are kept."""

FELL_OFF = 79
"""The Xid for a GPU that fell off the bus; messages that say so without a number count as it."""

RECOVERY_CHANGED = 154
"""The Xid that carries the driver's own verdict."""


@dataclass(frozen=True)
class GpuError:
    """An error of one GPU or NVSwitch, as often as it was seen.

    Attributes:
        pci: the device, as domain:bus:device.
        xid: the number of the error.
        count: how often.
        times: when, in seconds since the epoch, oldest first; the newest alone where it is often.
        text: what the last message says after the number.
        pid: the process that the last message names.
        recovery: what the driver wants done, in its words, of an Xid 154.
        switch: whether it is an SXid, of an NVSwitch.
    """

    pci: str
    xid: int
    count: int = 1
    times: tuple[float, ...] = ()
    text: str = ""
    pid: int | None = None
    recovery: str | None = None
    switch: bool = False

    @property
    def first(self) -> float | None:
        """The time of the oldest occurrence that is kept."""
        return self.times[0] if self.times else None

    @property
    def last(self) -> float | None:
        """The time of the newest occurrence."""
        return self.times[-1] if self.times else None


@dataclass(frozen=True)
class KernelLog:
    """What was read.

    Attributes:
        source: where from; None where neither could be read to its end.
        now: the host's time when it was read, in seconds since the epoch; None where there was no
            reason to.
        errors: by GPU and number.
    """

    source: Literal["journal", "dmesg"] | None = None
    now: float | None = None
    errors: tuple[GpuError, ...] = ()

    def of(self, address: str | None) -> list[GpuError]:
        """The errors of a GPU."""
        return [error for error in self.errors if address is not None and error.pci == address]


_NONE = "no-journal"


def command() -> str:
    """Print time, uptime, and the lines of the driver with their times; nothing without a GPU."""
    kept = f"grep -a -e NVRM -e 'SXid.* Fatal' -e '^{_NONE}$' | tail -n {LINES}"
    journal = f"journalctl -k -b -q -n {READ} -o short-unix --no-pager 2>/dev/null || echo {_NONE}"
    return (
        "[ -e /proc/driver/nvidia ] || [ -e /sys/module/nvidia ] "
        "|| command -v nvidia-smi >/dev/null || exit 0; "
        'echo "now $(date +%s) $(cut -d" " -f1 /proc/uptime)"; '
        f"said=$({{ {journal}; }} | {kept}); case $said in "
        f"*{_NONE}) ! dmesg >/dev/null 2>&1 || {{ echo dmesg; dmesg | {kept}; }};; "
        """*) echo journal; printf '%s\\n' "$said";; esac; true"""
    )


def words() -> tuple[object, ...]:
    """What `tell_kernel_log` of `ddtreectl.on_host` is told, which does the same."""
    return READ, LINES


def parse(output: Output) -> KernelLog:
    """The errors; total over whatever the log says."""
    source: Literal["journal", "dmesg"] | None = None
    now = booted = None
    lines: list[tuple[float | None, str]] = []
    time: float | None = None
    for line in output.lines:
        if source is None and (match := _NOW.fullmatch(line)):
            now = float(match[1])
            booted = now - float(match[2])
        elif source is None and line in {"journal", "dmesg"}:
            source = "journal" if line == "journal" else "dmesg"
        elif source is not None:
            time = _time(line, source, booted) or time  # a continuation has none of its own
            lines.append((time, line.partition("NVRM:")[2].strip() or line))
    found: dict[tuple[str, int], GpuError] = {}
    for error in _errors(lines):
        key = error.pci, error.xid
        before = found.pop(key, None)
        found[key] = error if before is None else _merged(before, error)
    return KernelLog(None if output.timed_out else source, now, tuple(found.values()))


_NOW = re.compile(r"now (\d{1,15}) (\d{1,15}(?:\.\d{1,9})?)")
_UNIX = re.compile(r"\s*(\d{1,15}\.\d{1,9})\s")
_SINCE_BOOT = re.compile(r"\s*\[\s*(\d{1,15}\.\d{1,9})\]")
_XID = re.compile(r"Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\)[^:]*: (\d{1,4})\b[,:]?\s*(.*)")
_SXID = re.compile(r"nvswitch\d+: SXid \(PCI:([0-9a-fA-F:.]+)\): (\d{1,6}), (Fatal,.*)")
_PID = re.compile(r"pid='?(\d{1,10})\b")
_ONE_LINE = re.compile(r"GPU ([0-9a-fA-F:.]+): GPU has fallen off the bus")
_BEGINS = re.compile(r"The NVIDIA GPU ([0-9a-fA-F:.]+)")
_TO = re.compile(r"changed from .* to \S+ \(([^)]*)\)")
_SAID_OFF = "fallen off the bus"
_IN_WORDS = "it has fallen off the bus"


def _time(line: str, source: str, booted: float | None) -> float | None:
    if source == "journal":
        match = _UNIX.match(line)
        return float(match[1]) if match else None
    match = _SINCE_BOOT.match(line)
    return booted + float(match[1]) if match and booted is not None else None


def _errors(lines: list[tuple[float | None, str]]) -> Iterator[GpuError]:
    """Each error in its turn."""
    begun: str | None = None
    for time, text in lines:
        times = () if time is None else (time,)
        if match := _XID.search(text):
            address = pci.normalised(match[1])
            if address is None:
                continue
            process, to = _PID.search(match[3]), _TO.search(match[3])
            yield GpuError(
                pci=address,
                xid=int(match[2]),
                times=times,
                text=match[3][:300],
                pid=as_int(process[1]) if process else None,
                recovery=to[1] if to and int(match[2]) == RECOVERY_CHANGED else None,
            )
        elif match := _SXID.search(text):
            if address := pci.normalised(match[1]):
                yield GpuError(address, int(match[2]), 1, times, match[3][:300], switch=True)
        elif match := _ONE_LINE.search(text):
            if address := pci.normalised(match[1]):
                yield GpuError(address, FELL_OFF, times=times, text=_IN_WORDS)
        elif match := _BEGINS.search(text):
            begun = pci.normalised(match[1])
        if begun is not None and _SAID_OFF in text:
            yield GpuError(begun, FELL_OFF, times=times, text=_IN_WORDS)
            begun = None


def _merged(before: GpuError, error: GpuError) -> GpuError:
    in_words = _IN_WORDS in (before.text, error.text) and before.text != error.text
    if in_words and (error.last or 0.0) - (before.last or 0.0) <= ECHO:
        return before if error.text == _IN_WORDS else replace(error, count=before.count)
    return GpuError(
        pci=error.pci,
        xid=error.xid,
        count=before.count + 1,
        times=(*before.times, *error.times)[-TIMES:],
        text=error.text,
        pid=error.pid,
        recovery=error.recovery,
        switch=error.switch,
    )
