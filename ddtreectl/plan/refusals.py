"""Why a plan must not be applied. Every rule is a function of the wish and the facts."""

from collections.abc import Iterator

from ddtreectl.facts.host import HostFacts
from ddtreectl.gpu.classify import classify
from ddtreectl.inventory.layout import slot_units
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.service import BUNDLED
from ddtreectl.plan.wish import Wish, current, installed_generation

ENVIRONMENT_BYTES = {"cpu": 3 << 30, "gpu": 12 << 30}
RECORD_BYTES = 64 << 20
MIN_INODES = 1000
ENVIRONMENT_INODES = 50_000
UNIT_DIR = "/etc/systemd/system"


def refusals(wish: Wish, facts: HostFacts) -> list[str]:
    """Everything that speaks against `wish`; empty where nothing does."""
    return [
        *_probe(facts),
        *_cordons(wish.place, facts),
        *_moved(wish.place, facts),
        *_unhealthy(wish.place, facts),
        *_service_manager(wish, facts),
        *_folders(wish, facts),
        *_api_key(wish, facts),
        *_disk(wish, facts),
        *port_owner(wish.place, facts),
        *_gpus(wish.place, facts),
        *_cards(wish, facts),
        *_foreign_units(wish.place, facts),
        *_environment(wish, facts),
    ]


def _probe(facts: HostFacts) -> Iterator[str]:
    if facts.missing:
        told = ", ".join(facts.missing)
        yield f"the host did not tell in time, as if it were overloaded: {told}"


def _cordons(place: Place, facts: HostFacts) -> Iterator[str]:
    for cordon in facts.records.cordons:
        gpus = facts.gpus
        if cordon.gpu is None or any(cordon.covers(index, gpus) for index in place.slot.gpus):
            target = place.host_name if cordon.gpu is None else f"{place.host_name}:{cordon.gpu}"
            yield f"{cordon}; `ddtreectl uncordon {target}` ends that"


def _moved(place: Place, facts: HostFacts) -> Iterator[str]:
    """Whether the service of the slot serves elsewhere, and the slot was not opened since."""
    gone = facts.records.moved.get(place.slot_name)
    if gone is None:
        return
    gpu = f":{place.slot.gpus[0]}" if place.slot.gpus else ""
    yield (
        f"the service of slot `{place.slot_name}` has moved to {gone.target} ({gone.by}, "
        f"{gone.at[:16]}); `ddtreectl migrate {place.host_name}{gpu} --undo` brings it back, "
        f"`ddtreectl uncordon {place.host_name}{gpu}` opens the slot for another one"
    )


def _unhealthy(place: Place, facts: HostFacts) -> Iterator[str]:
    """Whether the GPUs are in a state in which nothing may be started on them.

    Where the driver tells nothing or the GPU is not there, that is what is said instead.
    """
    indices = place.slot.gpus
    if facts.gpus.state != "ok" or not indices or not all(map(facts.gpus.at, indices)):
        return
    health = classify(place.host_name, place.host, facts, facts.records.settled)
    if found := health.against(indices):
        name, finding = found
        yield f"{f'{name}: ' if name else ''}{finding.reason}; {finding.hint}"


def _service_manager(wish: Wish, facts: HostFacts) -> Iterator[str]:
    if facts.systemd:
        return
    if not facts.without_systemd:
        yield "no systemd runs on the host"
        return
    if not wish.place.layout.unit_dir.endswith(UNIT_DIR):
        yield (
            "no systemd runs here, and docker-systemctl-replacement looks for units in "
            f"{UNIT_DIR} below some folder: `unit_dir` is {wish.place.layout.unit_dir}"
        )
    for word in wish.argv:
        if "$" in word:
            yield f"docker-systemctl-replacement would expand the `$` in `{word}`"
            break
        if not word.isprintable():
            yield f"docker-systemctl-replacement would change a character of {word!r}"
            break


def _folders(wish: Wish, facts: HostFacts) -> Iterator[str]:
    service = wish.candidate.service
    for what, folder in (("model", service.model), ("drafter", service.drafter)):
        if folder != BUNDLED and folder not in facts.folders:
            yield f"the {what} `{folder}` is no folder with a `config.json` on the host"


def _api_key(wish: Wish, facts: HostFacts) -> Iterator[str]:
    path = wish.candidate.service.api_key
    if path and path not in facts.keys:
        yield f"the file with the API keys, `{path}`, is not there"
    elif path and not facts.keys[path]:
        yield f"`{path}` must hold a key, belong to root and be readable by root alone (mode 600)"


def _disk(wish: Wish, facts: HostFacts) -> Iterator[str]:
    layout = wish.place.layout
    built = wish.candidate.environment in facts.records.environments
    needs = {layout.root: (RECORD_BYTES, MIN_INODES), layout.unit_dir: (RECORD_BYTES, MIN_INODES)}
    if not built:
        size = ENVIRONMENT_BYTES[wish.place.slot.device]
        needs[layout.environments] = (size, ENVIRONMENT_INODES)
    for path, (need, inodes) in needs.items():
        disk = facts.disk.get(path)
        if disk is None:
            continue
        if disk.free_bytes < need:
            free, wanted = disk.free_bytes >> 20, need >> 20
            yield f"the disk of {path} has {free} MiB free and {wanted} MiB are needed"
        if disk.free_inodes is not None and disk.free_inodes < inodes:
            yield f"the disk of {path} has {disk.free_inodes} inodes free, {inodes} are needed"


def port_owner(place: Place, facts: HostFacts) -> Iterator[str]:
    """Whether someone else listens on the port of the slot. Nothing foreign is ever stopped."""
    port = place.slot.port
    if not facts.port_taken(port):
        return
    own = own_pids(place, facts)
    pids = facts.listener_pids(port)
    for pid in pids:
        if pid not in own:
            process = facts.processes.get(pid)
            yield f"port {port} is taken by {process or f'pid {pid}'}, which is not ours to stop"
    if not pids:
        yield f"port {port} is taken by a process that the kernel does not name"


def own_pids(place: Place, facts: HostFacts) -> set[int]:
    """The processes of a slot: those of its units and those that carry its mark."""
    units = [facts.unit(name) for name in slot_units(place.slot_name)]
    marked = facts.slot_pids(place.layout.slot(place.slot_name))
    return set().union(marked, *(facts.unit_pids(unit) for unit in units))


def _gpus(place: Place, facts: HostFacts) -> Iterator[str]:
    if not place.slot.gpus:
        return
    if facts.gpus.state == "absent":
        yield "nvidia-smi is not installed on the host, so nothing is known of its GPUs"
        return
    if facts.gpus.state != "ok":
        said = f": {facts.gpus.said}" if facts.gpus.said else ""
        yield f"the GPU driver {'hangs' if facts.gpus.state == 'hung' else 'fails'}{said}"
        return
    by_index = {gpu.index: gpu for gpu in facts.gpus.gpus}
    own = own_pids(place, facts)
    for index in place.slot.gpus:
        if index not in by_index:
            yield f"GPU {index} is not there; the host has {len(by_index)}"
            continue
        for held in facts.gpus.processes:
            if held.gpu_uuid == by_index[index].uuid and held.pid not in own:
                process = facts.processes.get(held.pid) or f"pid {held.pid}"
                memory = "unknown" if held.memory_mib is None else f"{held.memory_mib} MiB"
                yield f"GPU {index} is used ({memory}) by {process}, which is not ours to stop"


def _cards(wish: Wish, facts: HostFacts) -> Iterator[str]:
    """Whether the unit is bound to the very cards that the slot has always had."""
    if facts.gpus.state != "ok":
        return
    place, candidate = wish.place, wish.candidate
    for index in place.slot.gpus:
        gpu = facts.gpus.at(index)
        if gpu is not None and gpu.uuid is None:
            yield f"the driver does not tell the UUID of GPU {index}, which the unit is bound to"
        elif gpu is not None and gpu.minor is None and facts.systemd:
            yield f"/proc/driver/nvidia does not tell the device node of {gpu}"
    for uuid in candidate.gpus:
        if facts.gpus.called(uuid) is None:
            yield f"{uuid}, which generation {candidate.number} is bound to, is not there"
    before = current(place, facts)
    if candidate.staged or before is None or wish.new_gpu or not before.gpus:
        return
    for was, now in zip(before.gpus, candidate.gpus, strict=False):
        if was != now:
            yield (
                f"slot `{place.slot_name}` was bound to {was}, and its GPU is {now} now: has a GPU "
                "before it been lost? With a new card in its place: `--new-gpu`"
            )


def _foreign_units(place: Place, facts: HostFacts) -> Iterator[str]:
    for name in slot_units(place.slot_name):
        text = facts.unit_files.get(name)
        if text is not None and installed_generation(text) is None:
            yield f"{place.layout.unit(name)} was not written by ddtreectl; move it away"
        for path in facts.unit(name).drop_ins:
            if path == place.layout.unguarded(name):
                continue  # an undo is at work, or was
            yield f"{path} changes the unit behind ddtreectl's back; move it away"


def _environment(wish: Wish, facts: HostFacts) -> Iterator[str]:
    candidate = wish.candidate
    if wish.refusal:
        yield wish.refusal
    if candidate.staged and candidate.environment not in facts.records.environments:
        yield f"environment `{candidate.environment}` of generation {candidate.number} is gone"
