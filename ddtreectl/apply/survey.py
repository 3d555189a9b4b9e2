"""Looks at the fleet for a migration: what leaves, and every slot that might take it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from ddtreectl.apply.candidates import UNKNOWN_ENVIRONMENT, new_generation
from ddtreectl.apply.kept_moves import KeptMoves, KeptServices
from ddtreectl.apply.session import Session
from ddtreectl.env.cuda import build_of
from ddtreectl.errors import DdtreectlError, UsageError
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.moves import Move
from ddtreectl.facts.records import Generation
from ddtreectl.gpu.classify import classify
from ddtreectl.gpu.verdict import Finding, Verdict
from ddtreectl.hosts.pool import on_each
from ddtreectl.inventory.model import Inventory
from ddtreectl.inventory.select import Place, Target, checked, service_for
from ddtreectl.inventory.service import BUNDLED, Mode, ServiceSpec
from ddtreectl.plan.migration import MigrationPlan, SlotMove, downtime, steps
from ddtreectl.plan.placement import Asked, Prospect, memory_by_weights, memory_held, place
from ddtreectl.plan.refusals import refusals
from ddtreectl.plan.wish import last_good, serving


@dataclass(frozen=True)
class Wanted:
    """What the operator says of a service that nobody can be asked about, or changes.

    Attributes:
        mode: how it decodes.
        budget: nodes of the tree besides the root.
        topk: candidates for each depth.
    """

    mode: Mode | None = None
    budget: int | None = None
    topk: int | None = None


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
            known = self._known(entry)
            if entry.slot.protected and self.source.gpu is None and not known.under_way:
                notes.append(f"{known.name} is protected: it moves only when its GPU is named")
            elif known.state == "fenced" and known.under_way:
                notes.append(f"{known.name} has moved to {known.under_way.target} already")
            elif known.service is None and not known.refusals:
                notes.append(f"nothing is to serve in {known.name}")
            elif not resume or known.under_way:
                leaving.append(known)
        if resume and not leaving:
            raise UsageError(f"no migration from {self.source} is unfinished")
        moves: list[SlotMove] = []
        for known in leaving:
            moves.append(self._placed(known, finding, moves))
        refused = tuple(reason for move in moves for reason in move.refusals)
        return MigrationPlan(
            source=str(self.source),
            verdict=self._verdict(),
            moves=tuple(moves),
            steps=() if refused else steps(moves, cordon=self._to_cordon(finding)),
            notes=tuple(notes),
            refusals=refused,
        )

    def finding(self) -> Finding | None:
        """Why nothing may be started on the source, or None."""
        found = self._against()
        return found[1] if found else None

    def _verdict(self) -> str:
        """Why the source is sick, in words."""
        found = self._against()
        if found is None:
            return self.unreachable.get(self.source.host_name, "")
        name, finding = found
        return f"{finding.verdict}: {f'{name}: ' if name else ''}{finding.reason}"

    def _against(self) -> tuple[str, Finding] | None:
        facts = self.facts.get(self.source.host_name)
        if facts is None:
            return None
        return classify(
            self.source.host_name, self.source.host, facts, facts.records.settled
        ).against([i for entry in self.source.places for i in entry.slot.gpus])

    def under_way(self, entry: Place) -> Move | None:
        """The move from a slot that was begun: by either host, else as the operator keeps it."""
        name = f"{entry.host_name}/{entry.slot_name}"
        told = [
            move
            for host, facts in self.facts.items()
            for slot, move in facts.records.arrived.items()
            if move.source == name and (move.state != "fenced" or self._has(host, slot))
        ]
        home = self.facts.get(entry.host_name)
        if home is not None and (marked := home.records.moved.get(entry.slot_name)):
            told.append(marked)
        kept = [m for m in self.moves.of(entry.host_name) if m.source_slot == entry.slot_name]
        return max([*told, *kept], key=lambda move: (move.at, move.state != "moving"), default=None)

    def _has(self, host: str, slot: str) -> bool:
        """Whether a slot still has the service that has come to it."""
        entry = self.sessions[host].entry
        if slot not in entry.slots:
            return False
        found = Place(host, entry, slot, entry.slots[slot])
        return self._should(found, self.facts[host]) is not None

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

    def _known(self, entry: Place) -> SlotMove:
        """What serves in a slot, as far as anybody knows."""
        facts, move = self.facts.get(entry.host_name), self.under_way(entry)
        opened = facts is not None and entry.slot_name not in facts.records.moved
        if move and move.state == "fenced" and opened:
            move = None  # that is over: the slot may serve again, and perhaps does
        service, number, source = None, None, ""
        serves: bool | None = None
        if facts is not None:
            now = serving(entry, facts)
            serves = now is not None and self._answers(entry, facts)
            found = now if now and now.status == "good" else self._should(entry, facts)
            if found and found.service:
                service, number, source = found.service, found.number, entry.host_name
        elif kept := self.services.of(entry.host_name, entry.slot_name):
            service, number, source = *kept, "this machine, which saw it last"
        if move and move.service:
            service, number, source = move.service, move.generation, "the move that was begun"
        refused: tuple[str, ...] = ()
        name = f"{entry.host_name}/{entry.slot_name}"
        asked = self.wanted
        if asked.mode or asked.budget or asked.topk:
            mode = asked.mode or (service.mode if service else None)
            if mode and not (move and move.state != "moving"):
                base = service or service_for(self.inventory, entry, mode)
                changed = {"mode": mode, "budget": asked.budget, "topk": asked.topk}
                update = {key: value for key, value in changed.items() if value is not None}
                service = checked({**base.model_dump(), **update})
                source = source or "the command line"
        if service is None and facts is None:
            unknown = (
                f"what {name} serves is not known: its host cannot be reached, and this machine"
            )
            refused = (f"{unknown} has not seen it; name it with `--mode` and `--budget`",)
        return SlotMove(entry, service, number, serves, source, move, refusals=refused)

    def _should(self, entry: Place, facts: HostFacts) -> Generation | None:
        if entry.slot_name in facts.records.stopped or entry.slot_name in facts.records.moved:
            return None
        return last_good(entry, facts)

    def _answers(self, entry: Place, facts: HostFacts) -> bool:
        return any(
            answer.ok
            for url, answer in facts.answers.items()
            if url.endswith(f":{entry.slot.port}/health")
        )

    def _placed(self, known: SlotMove, finding: Finding | None, before: list[SlotMove]) -> SlotMove:
        """The move with its target."""
        if known.refusals or known.service is None:
            return known
        move = known.under_way
        if move and move.state != "moving":
            if self.target and self.target.host_name != move.target_host:
                undo = f"`ddtreectl migrate {self.source} --undo` brings it back"
                return replace(known, refusals=(f"{known.name} serves in {move.target}; {undo}",))
            return known
        facts = self.facts.get(known.source.host_name)
        sick = facts is None or (finding is not None and finding.verdict is Verdict.CORDON_HOST)
        asked = Asked(
            known.source,
            known.service,
            self._memory(known),
            self._replicas(known),
            leave_host=sick or self.source.gpu is None,
        )
        promised = {m.target.name: m.name for m in before if m.target}
        prospects = [
            replace(prospect, promised=promised.get(prospect.name, ""))
            for prospect in self._prospects(known)
        ]
        if move and not self.target:
            prospects = [p for p in prospects if p.name == move.target] or prospects
        found = place(asked, prospects)
        refused: tuple[str, ...] = ()
        if found.chosen is None:
            why = "; ".join(
                f"{entry.prospect.name}: {entry.rejections[0]}" for entry in found.judged
            )
            tail = ""
            if move and not self.target:
                tail = f"; its move to {move.target} was begun: name another TARGET to leave that"
            why = why or "the inventory has no other one"
            refused = (f"no slot takes {known.name}: {why}{tail}",)
        placed = replace(known, placement=found, target=found.chosen, refusals=refused)
        return replace(placed, downtime=downtime(placed, self._took(known)))

    def _prospects(self, known: SlotMove) -> list[Prospect]:
        places = [
            Place(name, session.entry, slot_name, slot)
            for name, session in self.sessions.items()
            if self.target is None or self.target.host_name == name
            for slot_name, slot in session.entry.slots.items()
            if self.target is None or self.target.gpu is None or self.target.gpu in slot.gpus
        ]
        source = (known.source.host_name, known.source.slot_name)
        return [self._prospect(known, e) for e in places if (e.host_name, e.slot_name) != source]

    def _prospect(self, known: SlotMove, entry: Place) -> Prospect:
        facts = self.facts.get(entry.host_name)
        if facts is None or known.service is None:
            return Prospect(entry, None, self.unreachable.get(entry.host_name, ""))
        if len(entry.slot.gpus) != len(known.source.slot.gpus):
            return Prospect(entry, facts)
        copied, missing = [], []
        for folder in dict.fromkeys((known.service.model, known.service.drafter)):
            if folder == BUNDLED or folder in facts.folders:
                continue
            donor = self.donor(folder)
            if donor:
                copied.append((folder, self.facts[donor].weights.get(folder, 0)))
            else:
                missing.append(folder)
        folders = facts.folders | {known.service.model, known.service.drafter}
        try:
            wish, request = new_generation(
                entry, moved_to(known.service, entry), replace(facts, folders=frozenset(folders))
            )
        except UsageError as error:  # its wheelhouse is not here: other slots may do all the same
            return Prospect(entry, facts, refusals=(error.message,))
        build = build_of(request.choice.build) if request else None
        return Prospect(
            place=entry,
            facts=facts,
            refusals=tuple(refusals(wish, replace(facts, folders=frozenset(folders)))),
            misfit=_misfit(entry, facts, build.name) if build else "",
            environment=request.environment if request else UNKNOWN_ENVIRONMENT,
            missing=tuple(missing),
            copied=tuple(copied),
        )

    def donor(self, folder: str) -> str | None:
        """A host that has a model folder: the source, if it can be asked, else any other."""
        names = [self.source.host_name, *self.facts]
        return next((n for n in names if n in self.facts and folder in self.facts[n].folders), None)

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

    def _to_cordon(self, finding: Finding | None) -> str:
        """What of the source has to be cordoned, unless it is."""
        facts, host = self.facts.get(self.source.host_name), self.source.host_name
        if facts is None:
            kept = self.sessions[host].cordons
            return "" if any(entry.gpu is None for entry in kept) else host
        if finding is None:
            return ""
        cordons = facts.records.cordons
        if any(entry.gpu is None for entry in cordons):
            return ""
        if finding.verdict is Verdict.CORDON_HOST:
            return host
        indices = [i for entry in self.source.places for i in entry.slot.gpus]
        bad = [i for i in indices if self._bad(facts, i)]
        fresh = [i for i in bad if not any(c.covers(i, facts.gpus) for c in cordons)]
        return f"{host}:{fresh[0]}" if fresh else ""

    def _bad(self, facts: HostFacts, index: int) -> bool:
        health = classify(self.source.host_name, self.source.host, facts, facts.records.settled)
        return health.against([index]) is not None

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


def moved_to(service: ServiceSpec, target: Place) -> ServiceSpec:
    """A service as it is in another slot: mode, budget, top-k and all else move along."""
    gpus = ",".join(str(index) for index in target.slot.gpus)
    return service.model_copy(
        update={
            "device": "cpu" if target.slot.device == "cpu" else f"cuda:{gpus}",
            "address": target.slot.address,
            "port": target.slot.port,
        }
    )


def _misfit(entry: Place, facts: HostFacts, build: str) -> str:
    """Why an environment of a CUDA build does not serve the GPUs of a slot."""
    known = build_of(build)
    for index in entry.slot.gpus:
        gpu = facts.gpus.at(index)
        capability = gpu.compute_capability if gpu else None
        if known and capability and not known.runs_on(capability):
            text = ".".join(map(str, capability))
            has = ", ".join(f"{major}.{minor}" for major, minor in known.architectures)
            return (
                f"its environment is for {build}, which has no machine code for compute "
                f"capability {text}, only for {has}"
            )
    return ""
