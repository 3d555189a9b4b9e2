"""The JSON files in which a host keeps its records: how they are read, and what they say."""

import re
from shlex import quote

from pydantic import ValidationError

from ddtreectl.facts import cordons as cordon_files
from ddtreectl.facts.moves import move
from ddtreectl.facts.output import Output, as_float, as_int, json_object
from ddtreectl.facts.records import (
    STATUSES,
    UNKNOWN,
    Generation,
    LockOwner,
    Provisioned,
    Records,
    Status,
    Swap,
)
from ddtreectl.inventory.layout import Layout
from ddtreectl.inventory.service import ServiceSpec

FINISHED = "environment.json"
"""The file that makes an environment count as finished."""

_ENVIRONMENT = re.compile(r"[a-z]+-[a-z0-9]+-[0-9a-f]{12}")
"""What environments are called: a folder of another name is not ours, wherever they are kept."""


def patterns(layout: Layout) -> tuple[list[str], list[str]]:
    """The shell's patterns of all records, and of the folders of environments and claims."""
    root, environments = layout.root, layout.environments
    files = [
        *(f"{root}/{name}.json" for name in ("lock", "provisioned", "settled")),
        *(f"{root}/{place}/*.json" for place in ("cordons", "slots/*", "slots/*/generations/*")),
        f"{environments}/*/{FINISHED}",
    ]
    return files, [f"{environments}/*", layout.claims("*/*")]


def _quoted(names: list[str]) -> str:
    return " ".join(
        "*".join(quote(part) if part else "" for part in name.split("*")) for name in names
    )


def command(layout: Layout) -> str:
    """Print path, age in seconds and content of each record, a line each."""
    files, folders = patterns(layout)
    return (
        f"now=$(date +%s); for f in {_quoted(files)}; do "
        '[ -f "$f" ] || continue; '
        r"""printf '%s\t%s\t' "$f" "$((now - $(stat -c %Y "$f")))"; """
        r"""tr -d '\n' <"$f"; echo; done; """
        f"for d in {_quoted(folders)}; do "
        r"""[ ! -d "$d" ] || printf '%s/\t0\t\n' "$d"; """
        "done; true"
    )


def parse(output: Output, layout: Layout) -> Records:
    """The records; a damaged one keeps its place with what can be read of it."""
    files: dict[str, tuple[int, dict[str, object]]] = {}
    for line in output.lines:
        path, _, rest = line.partition("\t")
        age, _, text = rest.partition("\t")
        files[path] = (as_int(age) or 0, json_object(text))
    generations = []
    swaps = []
    stopped = set()
    moved, arrived = {}, {}
    for path, (_, content) in files.items():
        parts = path.removeprefix(f"{layout.root}/slots/").split("/")
        if len(parts) == 4 and parts[3] == "generation.json" and (number := as_int(parts[2])):
            state = files.get(f"{path.rpartition('/')[0]}/state.json", (0, {}))[1]
            generations.append(_generation(parts[0], number, content, state))
        elif len(parts) == 2 and parts[1] == "swap.json":
            swaps.append(_swap(parts[0], content))
        elif len(parts) == 2 and parts[1] == "stopped.json":
            stopped.add(parts[0])
        elif len(parts) == 2 and parts[1] == "moved.json":
            moved[parts[0]] = move(content)
        elif len(parts) == 2 and parts[1] == "arrived.json":
            arrived[parts[0]] = move(content)
    prefix = f"{layout.environments}/"
    finished = {
        path.removeprefix(prefix).split("/")[0]
        for path, (_, content) in files.items()
        if path.startswith(prefix) and path.endswith(f"/{FINISHED}") and content
    }
    begun = {
        path.removeprefix(prefix).split("/")[0]
        for path in files
        if path.startswith(prefix) and path.endswith("/")
    }
    claims = [
        path.removeprefix(layout.claims("")).split("/")
        for path in files
        if path.startswith(layout.claims(""))
    ]
    lock_age, lock = files.get(layout.lock, (0, None))
    return Records(
        generations=tuple(sorted(generations, key=lambda entry: (entry.slot, entry.number))),
        swaps=tuple(swaps),
        stopped=frozenset(stopped),
        environments=frozenset(finished),
        unfinished=frozenset(filter(_ENVIRONMENT.fullmatch, begun - finished)),
        claimed=frozenset(name for name, by, *_ in claims if by != layout.claimant),
        provisioned=_provisioned(files.get(layout.provisioned, (0, {}))[1]),
        lock=None if lock is None else parse_lock(lock, float(lock_age)),
        cordons=tuple(
            cordon_files.cordon(path.rpartition("/")[2].removesuffix(".json"), content)
            for path, (_, content) in sorted(files.items())
            if path.startswith(f"{layout.cordons}/")
        ),
        settled=cordon_files.settled(files.get(layout.settled, (0, {}))[1]),
        moved=moved,
        arrived=arrived,
    )


def parse_lock(content: dict[str, object], age: float) -> LockOwner:
    """The owner that a lock file names; a damaged file names nobody, and is a lock all the same."""
    return LockOwner(
        owner=_word(content, "owner"),
        pid=as_int(content.get("pid")) or 0,
        ticks=as_int(content.get("ticks")) or 0,
        host=_word(content, "host"),
        boot=_word(content, "boot"),
        since=_word(content, "since"),
        command=_word(content, "command"),
        token=_word(content, "token"),
        age=as_float(age) or 0.0,
    )


def _generation(
    slot: str, number: int, content: dict[str, object], state: dict[str, object]
) -> Generation:
    try:
        service = ServiceSpec.model_validate(content.get("service"), strict=False)
    except ValidationError:
        service = None
    named = state.get("status")
    status: Status = next((entry for entry in STATUSES if entry == named), "pending")
    return Generation(
        slot=slot,
        number=number,
        status=status if service else "failed",
        service=service,
        environment=_word(content, "environment"),
        unit=_word(content, "unit"),
        unit_sha256=_word(content, "unit_sha256"),
        environment_file_sha256=_word(content, "environment_file_sha256"),
        created_by=_word(content, "created_by"),
        created_at=_word(content, "created_at"),
        changed_at=_word(state, "at"),
        reason=_word(state, "reason") if service else "its record cannot be read",
        gpus=_words(content, "gpus"),
    )


def _provisioned(content: dict[str, object]) -> dict[str, Provisioned]:
    found = {}
    for backend, entry in content.items():
        if not isinstance(entry, dict):
            continue
        found[backend] = Provisioned(
            backend=backend,
            environment=_word(entry, "environment"),
            torch=_word(entry, "torch"),
            build=_word(entry, "build"),
            wheelhouse=_text(entry, "wheelhouse"),
            requirements=_text(entry, "requirements"),
            torch_wheel=_text(entry, "torch_wheel"),
            engine=str(entry.get("engine") or ""),
            taken_from=str(entry.get("taken_from") or ""),
        )
    return found


def _swap(slot: str, content: dict[str, object]) -> Swap:
    return Swap(
        slot=slot,
        to=as_int(content.get("to")) or 0,
        back=as_int(content.get("back")),
        owner=_word(content, "owner"),
        since=_word(content, "since"),
    )


def _words(content: dict[str, object], key: str) -> tuple[str, ...]:
    value = content.get(key)
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _word(content: dict[str, object], key: str) -> str:
    value = content.get(key)
    return value if isinstance(value, str) else UNKNOWN if value is None else str(value)


def _text(content: dict[str, object], key: str) -> str | None:
    value = content.get(key)
    return value if isinstance(value, str) else None
