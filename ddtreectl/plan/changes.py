"""What has changed on a fleet between two looks. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddtreectl.errors import DdtreectlError, UnreachableError
from ddtreectl.facts.cordons import Cordon
from ddtreectl.gpu.verdict import Verdict
from ddtreectl.plan.gpu_report import GpuReport, Remark
from ddtreectl.plan.status import FINE, HostStatus, ServiceStatus

Key = tuple[str, str]
"""A host, and what of it."""

HOST, DRIVER, GPU = "host", "driver", "GPU "
REACHABLE, CORDONED = "reachable", "cordoned"


@dataclass(frozen=True)
class State:
    """How something was at a look.

    Attributes:
        value: in a word or two.
        mark: what tells it from others with the same value; a change of it is a change.
        reason: in words.
        hint: what to do.
        fine: whether nobody has to do anything.
    """

    value: str
    mark: tuple[object, ...] = ()
    reason: str = ""
    hint: str = ""
    fine: bool = True

    def same(self, other: "State") -> bool:
        """Whether nothing has changed that is worth a word."""
        return (self.value, self.mark) == (other.value, other.mark)


UNSEEN = State("")


@dataclass(frozen=True)
class Change:
    """Something is not as it was.

    Attributes:
        host: where.
        what: `host`, `driver`, a GPU, a slot, or a cordon.
        before: how it was; None at the first look.
        after: how it is.
        reason: in words.
        hint: what to do.
        fine: whether nobody has to do anything.
    """

    host: str
    what: str
    before: str | None
    after: str
    reason: str
    hint: str
    fine: bool

    def __str__(self) -> str:
        """How messages tell it."""
        subject = self.host if self.what == HOST else f"{self.host} {self.what}"
        was = f" (was {self.before})" if self.before else ""
        return f"{subject}: {self.after}{was}{f': {self.reason}' if self.reason else ''}"


Snapshot = Mapping[Key, State]


def snapshot(
    seen: Mapping[str, HostStatus | DdtreectlError],
    before: Snapshot,
    kept: Mapping[str, tuple[Cordon, ...]],
) -> dict[Key, State]:
    """The state of all that a watch follows.

    Args:
        seen: what was told of each host.
        before: the state at the look before; of a host that does not answer it is what is known.
        kept: the cordons that the operator keeps, by host.
    """
    found: dict[Key, State] = {}
    for name, outcome in seen.items():
        known = {what: state for (host, what), state in before.items() if host == name}
        if isinstance(outcome, HostStatus):
            states = _of_host(outcome)
            if not states[DRIVER].fine:  # which then tells of some GPUs only, or of none
                gpus = {what: state for what, state in known.items() if what.startswith(GPU)}
                states = gpus | states
            found |= {(name, what): state for what, state in states.items()}
            continue
        found |= {(name, what): state for what, state in known.items()}
        found |= {(name, what): state for what, state in _cordons(kept.get(name, ())).items()}
        gone = isinstance(outcome, UnreachableError)
        value = "unreachable" if gone else "unknown"
        found[name, HOST] = State(value, (), outcome.message, outcome.hint, fine=False)
    return found


def changes(before: Snapshot, now: Snapshot) -> list[Change]:
    """What is not as it was. Of a host that is seen for the first time, what is not fine."""
    found = []
    for (host, what), state in now.items():
        was = before.get((host, what))
        first = before.get((host, HOST), UNSEEN).value != REACHABLE
        if was is None and first and state.fine and state.value != CORDONED:
            continue
        if was is None or not state.same(was):
            value = was.value if was else None
            told = state.reason, state.hint, state.fine
            found.append(Change(host, what, value, state.value, *told))
    for (host, what), was in before.items():
        if (host, what) not in now:
            after = "uncordoned" if was.value == CORDONED else "gone"
            fine = not what.startswith(GPU)
            found.append(Change(host, what, was.value, after, "", "", fine))
    return found


def _of_host(host: HostStatus) -> dict[str, State]:
    found = {HOST: State(REACHABLE)}
    if host.interrupted:
        hint = f"{', '.join(f'`{command}`' for command in host.rollbacks)} sets it right"
        said = f"{'; '.join(host.interrupted)}, was interrupted"
        found[HOST] = State("interrupted", host.interrupted, said, hint, fine=False)
    found |= _gpus(host.health)
    found |= {service.slot: _service(service) for service in host.services}
    return found | _cordons(host.health.cordons)


def _gpus(health: GpuReport) -> dict[str, State]:
    """The driver and each GPU; one that is not enumerated has a name of its own."""
    by_name: dict[str, list[Remark]] = {DRIVER: [], **{gpu.name: [] for gpu in health.gpus}}
    for remark in health.remarks:
        by_name.setdefault(remark.gpu or DRIVER, []).append(remark)
    return {name: _verdict(remarks) for name, remarks in by_name.items()}


def _verdict(remarks: list[Remark]) -> State:
    if not remarks:
        return State(str(Verdict.OK))
    first = remarks[0]
    signs = tuple(sorted({remark.sign for remark in remarks}))
    fine = first.verdict.rank < Verdict.DEGRADED.rank
    return State(str(first.verdict), signs, first.reason, first.hint, fine=fine)


def _service(service: ServiceStatus) -> State:
    mark = (service.generation, service.restarts, service.mode)
    said = service.problem or f"generation {service.generation}, {service.mode or 'unknown mode'}"
    return State(service.health, mark, said, fine=service.health in FINE)


def _cordons(cordons: tuple[Cordon, ...]) -> dict[str, State]:
    return {
        f"cordon {cordon.name}": State(CORDONED, (cordon.reason, cordon.kept), str(cordon))
        for cordon in cordons
    }
