"""What serves in the slots that are left, as far as hosts, records and the operator know it."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddtreectl.apply.kept_moves import KeptMoves, KeptServices
from ddtreectl.apply.session import Session
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.moves import Move
from ddtreectl.facts.records import Generation
from ddtreectl.inventory.model import Inventory
from ddtreectl.inventory.select import Place, checked, service_for
from ddtreectl.inventory.service import Budget, Mode
from ddtreectl.plan.migration import SlotMove
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
    budget: Budget | None = None
    topk: int | None = None


@dataclass
class Leaving:
    """Tells of a slot what leaves it.

    Attributes:
        inventory: the fleet.
        sessions: with each of its hosts.
        facts: what was found, by host.
        wanted: what the operator says of the service.
        moves: what the operator keeps.
        services: likewise.
    """

    inventory: Inventory
    sessions: Mapping[str, Session]
    facts: Mapping[str, HostFacts]
    wanted: Wanted
    moves: KeptMoves
    services: KeptServices

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

    def stale(self, entry: Place, target: str) -> tuple[str, ...]:
        """Slots that a move from `entry` was begun to, other than `target`."""
        name = f"{entry.host_name}/{entry.slot_name}"
        return tuple(
            f"{host}/{slot}"
            for host, facts in self.facts.items()
            for slot, move in facts.records.arrived.items()
            if (move.source, move.state) == (name, "moving") and f"{host}/{slot}" != target
        )

    def _has(self, host: str, slot: str) -> bool:
        """Whether a slot still has the service that has come to it."""
        entry = self.sessions[host].entry
        if slot not in entry.slots:
            return False
        found = Place(host, entry, slot, entry.slots[slot])
        return self._should(found, self.facts[host]) is not None

    def nothing(self, entry: Place) -> str:
        """Why nothing leaves a slot, and what would."""
        said = f"nothing is to serve in {entry.host_name}/{entry.slot_name}"
        facts, gone = self.facts.get(entry.host_name), self.under_way(entry)
        if gone is not None:
            return f"{said}: its service has moved to {gone.target}"
        stopped = facts is not None and entry.slot_name in facts.records.stopped
        if not (facts and stopped and entry.slot.gpus and last_good(entry, facts)):
            return said
        gpu = f"{entry.host_name}:{entry.slot.gpus[0]}"
        return f"{said}: it was stopped on purpose; `ddtreectl migrate {gpu}` moves it all the same"

    def known(self, entry: Place, *, named: bool = False) -> SlotMove:
        """What serves in a slot, as far as anybody knows.

        Args:
            entry: the slot.
            named: whether its GPU is named: what was stopped on purpose leaves it too, then.
        """
        facts, move = self.facts.get(entry.host_name), self.under_way(entry)
        went = move is not None and move.state == "fenced"
        opened = facts is not None and entry.slot_name not in facts.records.moved
        if went and opened:
            move = None  # that is over: the slot may serve again, and perhaps does
        service, number, source = None, None, ""
        serves: bool | None = None
        if facts is not None:
            now = serving(entry, facts)
            serves = now is not None and self._answers(entry, facts)
            found = now if now and now.status == "good" else self._should(entry, facts)
            if found is None and named and not went:
                found = last_good(entry, facts)
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
        idle = self.services.idle(entry.host_name, entry.slot_name)
        if service is None and facts is None and not idle:
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
