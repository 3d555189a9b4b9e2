"""Looks at the fleet for a migration: what leaves, and every slot that might take it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from ddtreectl.apply.donors import Donors
from ddtreectl.apply.kept_moves import KeptMoves, KeptServices
from ddtreectl.apply.leaving import Leaving, Wanted
from ddtreectl.apply.prospects import Prospects
from ddtreectl.apply.session import Session
from ddtreectl.errors import DdtreectlError, UsageError
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.moves import Move
from ddtreectl.gpu.classify import classify
from ddtreectl.gpu.verdict import Finding, HostHealth, Verdict
from ddtreectl.hosts.pool import on_each
from ddtreectl.inventory.model import Inventory
from ddtreectl.inventory.select import Place, Target
from ddtreectl.inventory.service import BUNDLED
from ddtreectl.plan.assignment import Candidates, assign
from ddtreectl.plan.migration import MigrationPlan, SlotMove, downtime, steps
from ddtreectl.plan.placement import (
    Asked,
    Placement,
    memory_by_weights,
    memory_held,
)
from ddtreectl.plan.wish import serving


@dataclass
class Survey:
    """A look at the fleet for one migration.

    Attributes:
        inventory: the fleet.
        sessions: with each of its hosts.
        source: what is left.
        target: where everything is to go; None for wherever it fits best.
        wanted: what the operator says of the service.
        moves: what the operator keeps.
        services: likewise.
        facts: what was found, by host.
        unreachable: why a host could not be looked at.
    """

    inventory: Inventory
    sessions: Mapping[str, Session]
    source: Target
    target: Target | None
    wanted: Wanted
    moves: KeptMoves
    services: KeptServices
    facts: dict[str, HostFacts] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)

    def look(self) -> None:
        """Ask every host at once; one that does not answer is a finding too."""
        names = list(self.sessions)
        folders = self._folders()
        for name, outcome in on_each(names, lambda n: self.sessions[n].gather(folders)):
            if isinstance(outcome, DdtreectlError):
                self.unreachable[name] = outcome.message
            else:
                self.facts[name] = outcome

    def plan(self, *, resume: bool = False) -> MigrationPlan:
        """Where everything goes, and how.

        Raises:
            UsageError: there is nothing to go on with, or what serves is not known.
        """
        finding = self.finding()
        notes, leaving = [], []
        for entry in self.source.places:
            known = self.leaving.known(entry, named=self.source.gpu is not None)
            if entry.slot.protected and self.source.gpu is None and not known.under_way:
                notes.append(f"{known.name} is protected: it moves only when its GPU is named")
            elif known.state == "fenced" and known.under_way and not self._stale(known):
                notes.append(f"{known.name} has moved to {known.under_way.target} already")
            elif known.service is None and not known.refusals:
                notes.append(self.leaving.nothing(entry))
            elif not resume or known.under_way:
                leaving.append(known)
        if resume and not leaving:
            raise UsageError(f"no migration from {self.source} is unfinished")
        moves = [replace(m, stale=self._stale(m)) for m in self._placed(leaving, finding)]
        stuck = [reason for move in moves for reason in move.refusals]
        refused = tuple(stuck) if all(move.refusals for move in moves) else ()
        return MigrationPlan(
            source=str(self.source),
            verdict=self._verdict(),
            moves=tuple(moves),
            steps=() if refused else steps(moves, cordons=self._to_cordon(finding)),
            notes=tuple(notes),
            refusals=refused,
        )

    def finding(self, target: Target | None = None) -> Finding | None:
        """Why nothing may be started on the source, or on `target` of it; or None."""
        found = self._against(target or self.source)
        return found[1] if found else None

    def _verdict(self) -> str:
        """Why the source is sick, in words."""
        found = self._against(self.source)
        if found is None:
            return self.unreachable.get(self.source.host_name, "")
        name, finding = found
        return f"{finding.verdict}: {f'{name}: ' if name else ''}{finding.reason}"

    def _against(self, target: Target) -> tuple[str, Finding] | None:
        indices = [i for entry in target.places for i in entry.slot.gpus]
        health = self._health()
        return health.against(indices) if health else None

    def _health(self) -> HostHealth | None:
        """Of the source; None where it cannot be asked."""
        name, facts = self.source.host_name, self.facts.get(self.source.host_name)
        return classify(name, self.source.host, facts, facts.records.settled) if facts else None

    def _folders(self) -> list[str]:
        """Every model folder that a service of the fleet may need."""
        found: dict[str, None] = {}
        for name in self.sessions:
            host = self.inventory.hosts[name]
            for slot_name, slot in host.slots.items():
                settings = self.inventory.settings(slot)
                found |= dict.fromkeys((settings.model, settings.drafter))
                if kept := self.services.of(name, slot_name):
                    found |= dict.fromkeys((kept[0].model, kept[0].drafter))
        return [folder for folder in found if folder != BUNDLED]

    def _placed(self, leaving: list[SlotMove], finding: Finding | None) -> list[SlotMove]:
        """The moves with their targets."""
        waiting = [known for known in leaving if self._needs_place(known)]
        asked = [self._asked(known, finding) for known in waiting]
        prospects = self.prospects
        candidates = [
            Candidates(a, prospects.of(a, self._places(known)))
            for known, a in zip(waiting, asked, strict=True)
        ]
        placements = iter(assign(candidates))
        return [
            self._with_target(known, next(placements))
            if self._needs_place(known)
            else self._settled(known)
            for known in leaving
        ]

    def _stale(self, known: SlotMove) -> tuple[str, ...]:
        target = known.target.name if known.target else None
        if target is None and known.under_way:
            target = known.under_way.target
        return self.leaving.stale(known.source, target or "")

    def _needs_place(self, known: SlotMove) -> bool:
        return not known.refusals and known.service is not None and known.state in {None, "moving"}

    def _settled(self, known: SlotMove) -> SlotMove:
        """One that has a target already, and serves there."""
        move = known.under_way
        if (
            move
            and not known.refusals
            and self.target
            and self.target.host_name != move.target_host
        ):
            undo = f"`ddtreectl migrate {self.source} --undo` brings it back"
            return replace(known, refusals=(f"{known.name} serves in {move.target}; {undo}",))
        return known

    def _asked(self, known: SlotMove, finding: Finding | None) -> Asked:
        assert known.service is not None  # noqa: S101 - else it needs no place
        gone = known.source.host_name not in self.facts
        sick = gone or (finding is not None and finding.verdict is Verdict.CORDON_HOST)
        return Asked(
            known.source,
            known.service,
            self._memory(known),
            self._replicas(known),
            leave_host=sick or self.source.gpu is None,
        )

    def _places(self, known: SlotMove) -> list[Place]:
        """The slots that might take it."""
        source = (known.source.host_name, known.source.slot_name)
        places = [
            Place(name, session.entry, slot_name, slot)
            for name, session in self.sessions.items()
            if self.target is None or self.target.host_name == name
            for slot_name, slot in session.entry.slots.items()
            if self.target is None or self.target.gpu is None or self.target.gpu in slot.gpus
            if (name, slot_name) != source
        ]
        move = known.under_way
        if move and not self.target:
            begun = [p for p in places if f"{p.host_name}/{p.slot_name}" == move.target]
            places = begun or places
        return places

    def _with_target(self, known: SlotMove, found: Placement) -> SlotMove:
        move = known.under_way
        refused: tuple[str, ...] = ()
        if found.chosen is None:
            why = "; ".join(
                f"{entry.prospect.name}: {entry.rejections[0]}" for entry in found.judged
            )
            tail = ""
            if move and not self.target:
                tail = f"; its move to {move.target} was begun: name another TARGET to leave that"
            itself = self.target and self.target.host_name == known.source.host_name
            none = "it is the slot that it leaves" if itself else "the inventory has no other one"
            why = why or none
            refused = (f"no slot takes {known.name}: {why}{tail}",)
        placed = replace(known, placement=found, target=found.chosen, refusals=refused)
        if refused:
            return placed
        return replace(placed, downtime=downtime(placed, self._took(known)))

    @property
    def leaving(self) -> Leaving:
        """What serves in the slots that are left."""
        return Leaving(
            self.inventory, self.sessions, self.facts, self.wanted, self.moves, self.services
        )

    def under_way(self, entry: Place) -> Move | None:
        """The move from a slot that was begun."""
        return self.leaving.under_way(entry)

    @property
    def donors(self) -> Donors:
        """Who has environments to give."""
        return Donors(self.inventory, self.sessions, self.facts, self.source.host_name)

    @property
    def prospects(self) -> Prospects:
        """The slots that there are."""
        return Prospects(self.sessions, self.facts, self.unreachable, self.donors)

    def donor(self, folder: str) -> str | None:
        """A host that has a model folder: the source, if it can be asked, else any other."""
        return self.prospects.donor(folder, self.source.host_name)

    def _memory(self, known: SlotMove) -> int | None:
        """What it holds now; SGLang takes whatever there is, so its weights have to tell."""
        if known.service is None:
            return None
        facts = self.facts.get(known.source.host_name)
        held = memory_held(known.source, facts) if facts else None
        if held and known.service.backend == "engine":
            return held
        donor = self.donor(known.service.model)
        return memory_by_weights(known.service, self.facts.get(donor) if donor else None)

    def _replicas(self, known: SlotMove) -> frozenset[str]:
        """Hosts, but for the source, where the model serves already."""
        found = set()
        for name, facts in self.facts.items():
            for slot_name, slot in self.sessions[name].entry.slots.items():
                now = serving(Place(name, self.sessions[name].entry, slot_name, slot), facts)
                model = now.service.model if now and now.service else BUNDLED
                if known.service and model == known.service.model != BUNDLED:
                    found.add(name)
        return frozenset(found - {known.source.host_name})

    def _to_cordon(self, finding: Finding | None) -> list[str]:
        """What of the source has to be cordoned, unless it is."""
        facts, host = self.facts.get(self.source.host_name), self.source.host_name
        if facts is None:
            kept = self.sessions[host].cordons
            return [] if any(entry.gpu is None for entry in kept) else [host]
        if finding is None:
            return []
        cordons = facts.records.cordons
        if any(entry.gpu is None for entry in cordons):
            return []
        if finding.verdict is Verdict.CORDON_HOST:
            return [host]
        indices = [i for entry in self.source.places for i in entry.slot.gpus]
        health = self._health()
        bad = [i for i in indices if health and health.against([i])]
        return [f"{host}:{i}" for i in bad if not any(c.covers(i, facts.gpus) for c in cordons)]

    def _took(self, known: SlotMove) -> float | None:
        """How long the start of the source's generation took, by its record."""
        facts = self.facts.get(known.source.host_name)
        if facts is None or known.service is None:
            return None
        for entry in facts.records.of_slot(known.source.slot_name):
            if entry.number == known.generation:
                try:
                    began = datetime.fromisoformat(entry.created_at)
                    seconds = (datetime.fromisoformat(entry.changed_at) - began).total_seconds()
                except ValueError:
                    return None
                return seconds if 0 < seconds < 2 * known.service.start_timeout else None
        return None
