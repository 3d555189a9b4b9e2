"""From facts to verdicts, by the table."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddtreectl.facts.gpu import Gpu, Gpus
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.kernel_log import RECOVERY_CHANGED, GpuError
from ddtreectl.gpu import table
from ddtreectl.gpu.row import DRAIN, HOUR, Row
from ddtreectl.gpu.verdict import Finding, GpuHealth, HostHealth, Verdict
from ddtreectl.gpu.xids import CATALOG
from ddtreectl.inventory.model import HostEntry


def classify(
    host: str, entry: HostEntry, facts: HostFacts, settled: Mapping[str, float] | None = None
) -> HostHealth:
    """What the facts say of the GPUs of a host.

    Args:
        host: its name, for hints.
        entry: its entry in the inventory: how many GPUs it has, and which serve together.
        facts: what was found.
        settled: up to when errors in the kernel log have been dealt with, by PCI address; under
            `""` those of all GPUs.
    """
    judge = _Judge(host, _grouped(entry), facts, settled or {})
    gpus = [judge.gpu(gpu) for gpu in facts.gpus.gpus]
    known = {gpu.pci for gpu in gpus}
    if facts.gpus.state == "ok":
        gpus += [judge.unlisted(node.pci, node.uuid) for node in facts.gpus.unlisted]
        known |= {node.pci for node in facts.gpus.unlisted}
    gone = dict.fromkeys(
        error.pci
        for error in facts.kernel_log.errors
        if error.pci not in known and not error.switch
    )
    uuids = {node.pci: node.uuid for node in facts.gpus.unlisted}
    for address in gone:
        errors = tuple(judge.logged(address, f"GPU {address}", group=False))
        if errors:
            gpus.append(GpuHealth(None, uuids.get(address), address, errors))
    return HostHealth(tuple(gpus), tuple(judge.driver(expected(entry))))


def expected(entry: HostEntry) -> int:
    """How many GPUs a host has by its inventory: as many as it says, or as its slots name."""
    if entry.gpus is not None:
        return entry.gpus
    slots = [index for slot in entry.slots.values() for index in slot.gpus]
    kept = [index for protected in entry.protected for index in protected.gpus]
    return max((*slots, *kept), default=-1) + 1


def _grouped(entry: HostEntry) -> frozenset[int]:
    """The GPUs that serve together with others."""
    return frozenset(i for slot in entry.slots.values() if len(slot.gpus) > 1 for i in slot.gpus)


@dataclass(frozen=True)
class _Judge:
    """Applies the table to one host."""

    host: str
    grouped: frozenset[int]
    facts: HostFacts
    settled: Mapping[str, float]

    def gpu(self, gpu: Gpu) -> GpuHealth:
        """A GPU that is enumerated."""
        group = gpu.index in self.grouped
        name = f"GPU {gpu.index}"
        place = f"{self.host}:{gpu.index}"
        found = [
            self._finding(f"gpu-{sign}", row, name, place, detail=detail, group=group)
            for sign, row, detail in _signs(gpu)
        ]
        found += self.logged(gpu.pci, name, place=place, group=group)
        return GpuHealth(gpu.index, gpu.uuid, gpu.pci, tuple(found))

    def unlisted(self, address: str, uuid: str | None) -> GpuHealth:
        """A GPU that the kernel has and nvidia-smi does not list."""
        name = f"GPU {address}"
        row = table.FAULTS["unlisted"]
        found = [self._finding("gpu-unlisted", row, name, self.host)]
        found += self.logged(address, name, group=False)
        return GpuHealth(None, uuid, address, tuple(found))

    def logged(
        self, address: str | None, name: str, *, place: str = "", group: bool
    ) -> Iterator[Finding]:
        """What the kernel log says of a GPU and is not settled."""
        since = max(self.settled.get("", 0.0), self.settled.get(address or "", 0.0))
        for error in self.facts.kernel_log.of(address):
            if error.last is not None and error.last <= since:
                continue
            yield self._error(error, since, name, place or self.host, group)

    def driver(self, wanted: int) -> Iterator[Finding]:
        """What is true of the driver and of the host."""
        gpus = self.facts.gpus
        signs = [*_driver_signs(self.facts, wanted), *self._switches()]
        for sign, detail in signs:
            row = table.DRIVER[sign]
            group = bool(self.grouped)
            found = self._finding(f"driver-{sign}", row, "", self.host, detail=detail, group=group)
            # Where the inventory has no GPU, nothing that is ours depends on one.
            serious = wanted > 0 or gpus.gpus
            yield found if serious else _capped(found)

    def _switches(self) -> Iterator[tuple[str, str]]:
        since = self.settled.get("", 0.0)
        for error in self.facts.kernel_log.errors:
            if error.switch and (error.last is None or error.last > since):
                yield "nvswitch", f"SXid {error.xid} of {error.pci}: {error.text}"

    def _error(self, error: GpuError, since: float, name: str, place: str, group: bool) -> Finding:
        sign = f"xid-{error.xid}"
        row = table.XIDS.get(error.xid, table.UNKNOWN)
        if error.xid == RECOVERY_CHANGED:
            action = recovery_action(error.recovery or "")
            if action is None:
                return _nothing_more(sign, "the driver wants nothing done any more")
            row = table.RECOVERY_ACTIONS[action]
        times = [time for time in error.times if time > since]
        count = len(times) if len(error.times) == error.count else error.count
        often = f"{count} times" if count > 1 else ""
        detail = ", ".join(part for part in (often, error.text.rstrip(".")) if part)
        escalated = self._repeated(row, times)
        found = self._finding(
            sign,
            row,
            name,
            place,
            detail=detail,
            group=group,
            fatal="Fatal" in error.text.split(),
            escalated=escalated,
        )
        if escalated is None and row.origin == "application" and self._over(error):
            return _nothing_more(sign, found.reason)
        return found

    def _repeated(self, row: Row, times: list[float]) -> Verdict | None:
        if row.repeats is None or not times:
            return None
        now = self.facts.kernel_log.now or times[-1]
        recent = [time for time in times if now - time <= row.repeats.within]
        return row.repeats.verdict if len(recent) > row.repeats.more_than else None

    def _over(self, error: GpuError) -> bool:
        """Whether an error of an application is history: it was long ago, or that has ended."""
        now = self.facts.kernel_log.now
        if error.last is not None and now is not None and now - error.last > HOUR:
            return True
        running = self.facts.processes
        return error.pid is not None and bool(running) and error.pid not in running

    def _finding(
        self,
        sign: str,
        row: Row,
        name: str,
        place: str,
        *,
        detail: str = "",
        group: bool = False,
        fatal: bool = False,
        escalated: Verdict | None = None,
    ) -> Finding:
        verdict = escalated or row.verdict
        if fatal and row.fatal:
            verdict = row.fatal
        if group and row.group:
            verdict = row.group
        hint = row.hint
        if verdict is not row.verdict and verdict is Verdict.DRAIN_GPU:
            hint = DRAIN
        said = f"Xid {sign.removeprefix('xid-')}: " if sign.startswith("xid-") else ""
        reason = f"{said}{row.meaning}" + (f" ({detail})" if detail else "")
        filled = hint.format(host=self.host, gpu=name or "the GPU", place=place)
        return Finding(sign, verdict, reason, filled, row.source)


def _signs(gpu: Gpu) -> Iterator[tuple[str, Row, str]]:
    """Rows of the table that a GPU shows, with what to add to their words."""
    if gpu.fault:
        yield gpu.fault, table.FAULTS[gpu.fault], ""
    elif gpu.memory_total_mib is None:
        yield "silent", table.FAULTS["silent"], ""
    if gpu.uncorrected_ecc:
        yield "ecc", table.FAULTS["ecc"], str(gpu.uncorrected_ecc)
    if gpu.remap_pending:
        yield "remap-pending", table.FAULTS["remap-pending"], ""
    if gpu.remap_failed:
        yield "remap-failed", table.FAULTS["remap-failed"], ""
    if gpu.inforom_corrupt:
        yield "inforom", table.FAULTS["inforom"], ""
    action = recovery_action(gpu.recovery or "")
    if action:
        yield f"recovery-{action}", table.RECOVERY_ACTIONS[action], gpu.recovery or ""


def recovery_action(words: str) -> str | None:
    """The row for what a driver calls a recovery action; None where it wants nothing.

    nvidia-smi says `Reset`, the kernel log `GPU Reset Required` or `PF FLR`, and `OS Reboot`.
    """
    lower = " ".join(words.lower().replace("_", " ").replace("&", "and").split())
    if lower in {"", "none", "n/a", "no action", "not supported"}:
        return None
    if "p2p" in lower:
        return "drain-p2p"
    if "drain" in lower and "reset" in lower:
        return "drain-and-reset"
    if "imex" in lower:
        return "recover-imex"
    if "bus reset" in lower:
        return "bus-reset"
    if "reboot" in lower:
        return "reboot"
    return "reset" if "reset" in lower or "flr" in lower.split() else "other"  # function level


def _driver_signs(facts: HostFacts, wanted: int) -> Iterator[tuple[str, str]]:
    gpus = facts.gpus
    seen: set[str] = set()
    if gpus.state == "absent":
        if wanted:
            yield "absent", ""
        return
    if gpus.state == "hung":
        yield "hung", ""
    elif gpus.state == "failed":
        sign = _failure(gpus)
        seen.add(sign)
        yield sign, " ".join(gpus.said.split())[:200]
    elif (there := len(gpus.gpus) + len(gpus.unlisted)) < wanted:
        gone = [f"the {uuid} of slot `{slot}` is not" for slot, uuid in _gone(facts)]
        yield "missing", "; ".join([f"{there} of {wanted} are there", *gone])
    log = facts.kernel_log
    if log.now is not None and log.source is None:
        yield "unread-log", ""
    module, library = facts.driver.version, facts.driver.user_space
    if module and library and module != library and "mismatch" not in seen:
        yield "mismatch", f"module {module}, library {library}"


def _gone(facts: HostFacts) -> Iterator[tuple[str, str]]:
    """Slots with the cards that their last generation was bound to and that are not there."""
    last = {generation.slot: generation for generation in facts.records.generations}
    known = {gpu.uuid for gpu in facts.gpus.gpus} | {node.uuid for node in facts.gpus.unlisted}
    for slot, generation in last.items():
        yield from ((slot, uuid) for uuid in generation.gpus if uuid not in known)


def _failure(gpus: Gpus) -> str:
    code = gpus.code or 0
    if code in table.EXIT_CODES:
        return table.EXIT_CODES[code]
    if "version mismatch" in gpus.said.lower():
        return "mismatch"
    return "crashed" if code > 128 and code < 128 + 65 else "failed"


def _nothing_more(sign: str, reason: str) -> Finding:
    return Finding(sign, Verdict.OK, reason, "", CATALOG)


def _capped(found: Finding) -> Finding:
    verdict = min(found.verdict, Verdict.DEGRADED, key=lambda entry: entry.rank)
    return Finding(found.sign, verdict, found.reason, found.hint, found.source)
