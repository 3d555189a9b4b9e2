"""The plan of a migration as data: where each service goes, and in which steps. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from ddtreectl.facts.moves import Move, State
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.service import ServiceSpec
from ddtreectl.plan.placement import MIB, Placement, Prospect


class MoveAction(StrEnum):
    """What a step does; `apply.migrate` has one function for each."""

    CORDON = "cordon"
    ANNOUNCE = "announce"
    PROVISION = "provision"
    COPY_WEIGHTS = "copy-weights"
    START = "start"
    MARK_MOVED = "mark-moved"
    FENCE = "fence"


@dataclass(frozen=True)
class MoveStep:
    """One step.

    Attributes:
        action: what is done.
        title: the same for a reader, in the imperative.
        reason: why it is in the plan.
        place: the slot of the source that it is for.
        folder: what it copies, where it does.
    """

    action: MoveAction
    title: str
    reason: str
    place: Place
    folder: str = ""


@dataclass(frozen=True)
class SlotMove:
    """One service on its way.

    Attributes:
        source: the slot that it leaves.
        service: what it is, as it serves there; None where that is not known.
        generation: of the source.
        serves: whether the source serves now; None where it cannot be asked.
        known_from: where the service is known from: its host, the operator's machine, or a record.
        under_way: the record of the move, where it was begun before.
        placement: the judgement on each slot that might take it.
        target: the slot that it goes to; None where there is none.
        downtime: what clients are to expect, in words.
        refusals: why it cannot move.
    """

    source: Place
    service: ServiceSpec | None
    generation: int | None
    serves: bool | None
    known_from: str
    under_way: Move | None = None
    placement: Placement | None = None
    target: Prospect | None = None
    downtime: str = ""
    refusals: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """How messages name the source."""
        return f"{self.source.host_name}/{self.source.slot_name}"

    @property
    def state(self) -> State | None:
        """How far it is."""
        return self.under_way.state if self.under_way else None


@dataclass(frozen=True)
class MigrationPlan:
    """What a migration does.

    Attributes:
        source: `HOST` or `HOST:GPU`.
        verdict: what the source's health is, in words; empty where nothing is wrong.
        moves: the services.
        steps: in order.
        notes: what a reader should know besides.
        refusals: why it must not be done.
    """

    source: str
    verdict: str
    moves: tuple[SlotMove, ...]
    steps: tuple[MoveStep, ...]
    notes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.steps


def steps(moves: list[SlotMove], *, cordon: str) -> tuple[MoveStep, ...]:
    """The steps of a migration: everything that can fail comes before the first start.

    Args:
        moves: the services, each with a target or under way.
        cordon: the source, where it has to be cordoned; else nothing.
    """
    found: list[MoveStep] = []
    fresh = [move for move in moves if move.state in {None, "moving"}]
    if cordon and moves:
        reason = "nothing is to be started there while it is left, or afterwards"
        found.append(MoveStep(MoveAction.CORDON, f"cordon {cordon}", reason, moves[0].source))
    for move in fresh:
        found += _preparations(move)
    for move in moves:
        if move in fresh:
            found += _exchange(move)
        if move.state != "fenced":
            found.append(
                MoveStep(
                    MoveAction.FENCE,
                    f"fence {move.name}: stop, disable and mask its units",
                    "what has moved must not serve twice; a host out of reach is fenced when it "
                    "answers",
                    move.source,
                )
            )
    return tuple(found)


def _preparations(move: SlotMove) -> Iterator[MoveStep]:
    target = move.target
    if target is None:
        return
    yield MoveStep(
        MoveAction.ANNOUNCE,
        f"note on {target.place.host_name} what is to come",
        "whoever comes next can go on with it",
        move.source,
    )
    if not target.provisioned:
        yield MoveStep(
            MoveAction.PROVISION,
            f"build environment {target.environment} on {target.place.host_name}",
            "no finished environment there serves it",
            move.source,
        )
    for folder, size in target.copied:
        yield MoveStep(
            MoveAction.COPY_WEIGHTS,
            f"copy {folder} to {target.place.host_name} ({size // MIB} MiB)",
            "the service loads it from its own host",
            move.source,
            folder,
        )


def _exchange(move: SlotMove) -> Iterator[MoveStep]:
    target, service = move.target, move.service
    if target is None or service is None:
        return
    what = f"mode {service.mode}, budget {service.budget}, top-k {service.topk}"
    yield MoveStep(
        MoveAction.START,
        f"start it in {target.name} and check its health: {what}",
        "the source is left alone until the target has passed every check",
        move.source,
    )
    yield MoveStep(
        MoveAction.MARK_MOVED,
        f"mark {move.name} as moved to {target.name}",
        "from here on the service is at its new place",
        move.source,
    )


def downtime(move: SlotMove, seconds: float | None) -> str:
    """What clients are to expect.

    Args:
        move: the service.
        seconds: how long its last start took; None where that is not known.
    """
    if move.service is None:
        return ""
    if move.serves:
        return f"none: {move.name} serves until {move.target.name if move.target else '?'} does"
    took = f"about {seconds:.0f} s as last time" if seconds else ""
    limit = f"{move.service.start_timeout} s at the most"
    start = f"{took}, {limit}" if took else limit
    before = []
    if move.target and not move.target.provisioned:
        before.append("the environment is built")
    if move.target and move.target.copied:
        before.append("the weights are copied")
    first = f"once {' and '.join(before)}, " if before else ""
    now = "it is down now" if move.serves is False else f"nobody can ask {move.name} now"
    again = "it serves again" if move.serves is False else "it serves at its new place"
    return f"{now}; {again} {first}after a start ({start})"
