"""The plan of a migration as data: where each service goes, and in which steps. Pure."""

from collections.abc import Iterator, Sequence
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
    ABANDON = "abandon"


@dataclass(frozen=True)
class MoveStep:
    """One step.

    Attributes:
        action: what is done.
        title: the same for a reader, in the imperative.
        reason: why it is in the plan.
        places: the slots of the source that it is for.
        subject: the folder that it copies, what it cordons, or the slot that it leaves alone.
    """

    action: MoveAction
    title: str
    reason: str
    places: tuple[Place, ...]
    subject: str = ""


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
        stale: slots that an earlier move of it was begun to, and that it does not go to.
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
    stale: tuple[str, ...] = ()
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
        refusals: why none of it can be done; where some services can move, only those that cannot
            have theirs.
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

    @property
    def stuck(self) -> tuple[SlotMove, ...]:
        """The services that cannot move."""
        return tuple(move for move in self.moves if move.refusals)


def steps(moves: Sequence[SlotMove], *, cordons: Sequence[str] = ()) -> tuple[MoveStep, ...]:
    """The steps of a migration: everything that can fail comes before the first start.

    Args:
        moves: the services, each with a target or under way; one that cannot move has no steps.
        cordons: what of the source has to be cordoned.
    """
    going = [move for move in moves if not move.refusals]
    fresh = [move for move in going if move.state in {None, "moving"}]
    everyone = tuple(move.source for move in going)
    reason = "nothing is to be started there while it is left, or afterwards"
    found = [
        MoveStep(MoveAction.CORDON, f"cordon {target}", reason, everyone, target)
        for target in (cordons if going else ())
    ]
    found += _preparations(fresh)
    for move in going:
        if move in fresh:
            found += _exchange(move)
        if move.state != "fenced":
            found.append(
                MoveStep(
                    MoveAction.FENCE,
                    f"fence {move.name}: stop, disable and mask its units",
                    "what has moved must not serve twice; a host out of reach is fenced when it "
                    "answers",
                    (move.source,),
                )
            )
        found += [
            MoveStep(
                MoveAction.ABANDON,
                f"end the move to {slot} that was begun",
                "what has come elsewhere must not serve there as well",
                (move.source,),
                slot,
            )
            for slot in move.stale
        ]
    return tuple(found)


def _preparations(moves: Sequence[SlotMove]) -> Iterator[MoveStep]:
    """What is done before any start; what several services need on a host is done once."""
    environments: dict[tuple[str, ...], list[Place]] = {}
    copies: dict[tuple[str, str, int], list[Place]] = {}
    for move in moves:
        target = move.target
        if target is None:
            continue
        host = target.place.host_name
        yield MoveStep(
            MoveAction.ANNOUNCE,
            f"note on {host} that {move.name} is to come to {target.place.slot_name}",
            "whoever comes next can go on with it",
            (move.source,),
        )
        if not target.provisioned:
            needed = (host, target.environment, target.taken_from)
            environments.setdefault(needed, []).append(move.source)
        for folder, size in target.copied:
            copies.setdefault((host, folder, size), []).append(move.source)
    for (host, environment, donor), sources in environments.items():
        title = f"build environment {environment} on {host}"
        if donor:
            title = f"take environment {environment} over from {donor} to {host}"
        reason = "no finished environment there serves it"
        yield MoveStep(MoveAction.PROVISION, title, reason, tuple(sources))
    for (host, folder, size), sources in copies.items():
        title = f"copy {folder} to {host} ({size // MIB} MiB)"
        reason = "the service loads it from its own host"
        yield MoveStep(MoveAction.COPY_WEIGHTS, title, reason, tuple(sources), folder)


def _exchange(move: SlotMove) -> Iterator[MoveStep]:
    target, service = move.target, move.service
    if target is None or service is None:
        return
    what = f"mode {service.mode}, budget {service.budget}, top-k {service.topk}"
    yield MoveStep(
        MoveAction.START,
        f"start it in {target.name} and check its health: {what}",
        "the source is left alone until the target has passed every check",
        (move.source,),
    )
    yield MoveStep(
        MoveAction.MARK_MOVED,
        f"mark {move.name} as moved to {target.name}",
        "from here on the service is at its new place",
        (move.source,),
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
        how = "taken over" if move.target.taken_from else "built"
        before.append(f"the environment is {how}")
    if move.target and move.target.copied:
        before.append("the weights are copied")
    first = f"once {' and '.join(before)}, " if before else ""
    now = "it is down now" if move.serves is False else f"nobody can ask {move.name} now"
    again = "it serves again" if move.serves is False else "it serves at its new place"
    return f"{now}; {again} {first}after a start ({start})"
