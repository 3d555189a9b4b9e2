"""Keeps a service from starting on a GPU that the kernel log of this boot speaks against.

An error of an application restarts the service. One that comes again and again drains its GPU: the
GPU is cordoned, by a file that every operator meets, and the unit is not started again, not even
after a reboot, until somebody ends the cordon. Of an error after which the GPU has to be reset the
log itself tells, so that the service starts again after a reboot.

The exit status is 75 where the service must not start. Whatever cannot be read keeps nothing down.
Runs as root, needs nothing but the standard library, and asks nothing of the GPU or its driver.

Arguments: the folder of records; the unit; which errors are put up with, as `MORE/SECONDS=XID,XID`
for each rule, or `0/=XID` for those that are not, joined by `;`; and for each card
`INDEX@UUID@ADDRESS`.
"""

import datetime
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

DRAINED = 75
DEADLINE = 8.0
LINES = "50000"
XID = re.compile(
    r"\s*(\d{1,15}\.\d{1,9})\s.*NVRM: Xid \((?:PCI:)?((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2})"
    r"[^)]*\)[^:]*: (\d{1,4})\b",
    re.IGNORECASE,
)
UNREADABLE = (OSError, ValueError, TypeError, AttributeError)


def log() -> list[tuple[str, int, float]]:
    """The Xids since boot, as address, number and time."""
    command = ["journalctl", "-k", "-b", "-q", "-n", LINES, "-o", "short-unix", "--no-pager"]
    said = subprocess.run(command, capture_output=True, timeout=DEADLINE, check=False).stdout
    matches = map(XID.match, said.decode(errors="replace").splitlines())
    return [(normalised(m[2]), int(m[3]), float(m[1])) for m in matches if m]


def normalised(address: str) -> str:
    """An address as domain:bus:device."""
    domain, bus, device = (["0", *address.lower().partition(".")[0].split(":")])[-3:]
    return f"{int(domain or '0', 16):04x}:{bus}:{device}"


def content(path: Path) -> dict[str, object]:
    """The object in a JSON file; an empty one where there is none that can be read."""
    try:
        found = json.loads(path.read_bytes())
    except UNREADABLE:
        return {}
    return found if isinstance(found, dict) else {}


def place(uuid: str, address: str) -> str:
    """Where a card is now; where it was when the unit was made, if the driver does not say."""
    try:
        for folder in Path("/proc/driver/nvidia/gpus").iterdir():
            if uuid.encode() in (folder / "information").read_bytes():
                return normalised(folder.name)
    except OSError:
        pass
    return address


def settled(root: Path, address: str) -> float:
    """Up to when errors have been dealt with."""
    times = content(root / "settled.json")
    found = [times.get(key) for key in ("", address)]
    return max([0.0, *(value for value in found if isinstance(value, (int, float)))])


def limits(text: str) -> dict[int, tuple[int, float | None]]:
    """How many of an Xid within how many seconds are put up with; None: for ever."""
    found = {}
    for rule in text.split(";"):
        limit, _, numbers = rule.partition("=")
        more, _, within = limit.partition("/")
        for number in numbers.split(","):
            found[int(number)] = int(more), float(within) if within else None
    return found


def against(
    errors: list[tuple[int, float]],
    allowed: dict[int, tuple[int, float | None]],
    since: float,
    now: float,
) -> tuple[str, bool] | None:
    """What speaks against a card, as words and whether it outlasts a reboot; None: nothing."""
    times: dict[int, list[float]] = {}
    for number, at in errors:
        if number in allowed and at > since:
            times.setdefault(number, []).append(at)
    for number, found in sorted(times.items()):
        more, within = allowed[number]
        recent = [at for at in found if within is None or now - at <= within]
        if len(recent) > more:
            if within is None:
                return f"Xid {number}", False
            return f"Xid {number}, {len(recent)} times within {within / 3600:g} h", True
    return None


def cordon(path: Path, index: int, uuid: str, unit: str, reason: str) -> None:
    """Cordon a GPU; a cordon that an operator has made keeps its words."""
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    made = {"gpu": index, "uuid": uuid, "reason": reason, "by": unit, "at": at}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump({**made, **content(path), "drained": reason}, file, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def main(root: str, unit: str, rules: str, *cards: str) -> int:
    """Look at each card, and return the exit status."""
    allowed = limits(rules)
    try:
        found = log()
    except (*UNREADABLE, subprocess.SubprocessError) as error:
        sys.stdout.write(f"the kernel log cannot be read ({error})\n")
        found = []
    for card in cards:
        index, uuid, address = card.split("@")
        path = Path(root, "cordons", f"{uuid}.json")
        said = content(path).get("drained")
        if not said:
            address = place(uuid, address)
            errors = [(number, at) for where, number, at in found if where == address]
            told = against(errors, allowed, settled(Path(root), address), time.time())
            if told is None:
                continue
            said, lasting = told
            if lasting:
                try:
                    cordon(path, int(index), uuid, unit, said)
                except OSError as error:
                    sys.stdout.write(f"the cordon cannot be written ({error})\n")
        sys.stdout.write(f"GPU {index} ({uuid}) is drained: {said}; {unit} does not start\n")
        return DRAINED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
