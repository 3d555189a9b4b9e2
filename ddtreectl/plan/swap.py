"""Plans: deploy, roll back, stop."""

import difflib

from ddtreectl.facts import told
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.http import TIMED_OUT, base_url
from ddtreectl.inventory.layout import slot_units
from ddtreectl.inventory.select import Place
from ddtreectl.plan.refusals import refusals
from ddtreectl.plan.step import Action, Candidate, Phase, Plan, Step
from ddtreectl.plan.wish import Wish, last_good, serving


def plan_swap(wish: Wish, facts: HostFacts) -> Plan:
    """Bring the candidate into service in place of whatever runs in the slot."""
    place, candidate = wish.place, wish.candidate
    now = serving(place, facts)
    if not wish.force and _serves_the_same(wish, facts):
        number = now.number if now else candidate.number
        notes = (f"generation {number} serves exactly this already",)
        return Plan(place.host_name, place.slot_name, (), candidate, notes=notes)
    good = last_good(place, facts)
    back = now if now and now.status == "good" else good
    if back is None or place.slot_name in facts.records.stopped:
        back = None
    steps = [*_prepare(wish, facts), *_exchange(wish, facts), *_confirm(wish, facts)]
    return Plan(
        host=place.host_name,
        slot=place.slot_name,
        steps=tuple(steps),
        candidate=candidate,
        back=back.number if back else None,
        refusals=tuple(refusals(wish, facts)),
        notes=tuple(_notes(wish, facts, back.number if back else None)),
        unit_diff=_unit_diff(wish, facts),
    )


def plan_stop(place: Place, facts: HostFacts) -> Plan:
    """Stop whatever runs in the slot, and keep it stopped.

    A service that should run and does not is given up: it is not to start at boot either.
    """
    records = facts.records
    running = tuple(unit.name for unit in facts.running_units(place.slot_name))
    stray = facts.slot_pids(place.layout.slot(place.slot_name))
    settled = place.slot_name in records.stopped and records.swap_of(place.slot_name) is None
    if not running and not stray and (settled or not records.of_slot(place.slot_name)):
        return Plan(place.host_name, place.slot_name, (), None, notes=("nothing runs in the slot",))
    phase, steps = Phase.PREPARE, []
    if running:
        reason = "the slot is to be empty"
        steps.append(Step(Action.STOP, f"stop {', '.join(running)}", reason, phase, running))
    if running or stray:
        steps.append(
            Step(
                Action.AWAIT_RELEASE,
                "wait until the processes are gone",
                "an empty slot holds no port and no memory",
                phase,
                tuple(slot_units(place.slot_name)),
            )
        )
    steps.append(
        Step(
            Action.MARK_STOPPED,
            "do not start it at boot",
            "a stopped slot stays stopped until the next deploy or rollback",
            phase,
            tuple(slot_units(place.slot_name)),
        )
    )
    return Plan(place.host_name, place.slot_name, tuple(steps), None)


def restore_steps(place: Place, candidate: Candidate, facts: HostFacts) -> tuple[Step, ...]:
    """The steps that bring a good generation back after a failed or interrupted swap."""
    wish = Wish(place, candidate, force=True)
    exchange = [step for step in _exchange(wish, facts) if step.action not in _GUARDS]
    return (*exchange, *(step for step in _confirm(wish, facts) if step.action not in _GUARDS))


_GUARDS = {Action.BEGIN_SWAP, Action.ARM_REVERT, Action.DISARM_REVERT}


READINESS = ("/ready", "/health")
"""The paths that tell whether a service takes requests."""


def silent(wish: Wish, facts: HostFacts) -> bool:
    """Whether what runs is what is wished for, and alone its answer has not come in time.

    A service that is busy can be too late for a probe, and is no reason for a swap.
    """
    answers = [facts.answers.get(f"{_base(wish)}{path}") for path in READINESS]
    return (
        not wish.force
        and _runs_the_same(wish, facts)
        and any(answer is not None and answer.error == TIMED_OUT for answer in answers)
    )


def _base(wish: Wish) -> str:
    return base_url(wish.candidate.service.address, wish.candidate.service.port)


def _runs_the_same(wish: Wish, facts: HostFacts) -> bool:
    """Whether the candidate is what runs already, by the record, the unit and its state."""
    now, candidate = serving(wish.place, facts), wish.candidate
    if now is None or now.status != "good" or now.service is None:
        return False
    if candidate.staged and now.number != candidate.number:
        return False
    return (
        now.service == candidate.service
        and now.environment == candidate.environment
        and facts.unit(now.unit).active == "active"
    )


def _serves_the_same(wish: Wish, facts: HostFacts) -> bool:
    ready, health = (facts.answers.get(f"{_base(wish)}{path}") for path in READINESS)
    return (
        _runs_the_same(wish, facts)
        and ready is not None
        and (ready.ok or (health is not None and told.is_ready(ready, health)))
    )


def _prepare(wish: Wish, facts: HostFacts) -> list[Step]:
    candidate, phase = wish.candidate, Phase.PREPARE
    steps = []
    if candidate.environment not in facts.records.environments:
        steps.append(
            Step(
                Action.BUILD_ENVIRONMENT,
                f"build environment {candidate.environment}",
                "no finished environment holds this engine for this interpreter",
                phase,
            )
        )
    if not candidate.staged:
        steps.append(
            Step(
                Action.STAGE_GENERATION,
                f"write generation {candidate.number}",
                "its unit, settings and paths never change afterwards",
                phase,
            )
        )
    check_unit = "a mistake in the unit shows before the old service stops"
    check_model = "a model that cannot be loaded shows before the old service stops"
    return [
        *steps,
        Step(Action.CHECK_UNIT, f"check {candidate.unit}", check_unit, phase, (candidate.unit,)),
        Step(Action.CHECK_MODEL, "check model and drafter", check_model, phase),
    ]


def _exchange(wish: Wish, facts: HostFacts) -> list[Step]:
    place, candidate, swap = wish.place, wish.candidate, Phase.SWAP
    steps = [
        Step(
            Action.BEGIN_SWAP,
            "note the swap on the host",
            "whoever comes next can finish what is interrupted",
            swap,
        )
    ]
    if facts.systemd and facts.systemd_run:
        steps.append(
            Step(
                Action.ARM_REVERT,
                "arm the dead-man revert",
                "the host returns to the last good generation if the operator is lost",
                swap,
            )
        )
    running = tuple(unit.name for unit in facts.running_units(place.slot_name))
    if running:
        reason = "one service at a time has the slot"
        steps.append(Step(Action.STOP, f"stop {', '.join(running)}", reason, swap, running))
    steps.append(
        Step(
            Action.AWAIT_RELEASE,
            _release(place),
            "the new service must not meet the old one",
            swap,
            tuple(slot_units(place.slot_name)),
        )
    )
    unit = (candidate.unit,)
    install = "the unit file changes only while its service is down"
    start = f"generation {candidate.number} serves {candidate.service.mode}"
    return [
        *steps,
        Step(Action.INSTALL_UNIT, f"install {candidate.unit}", install, swap, unit),
        Step(Action.START, f"start {candidate.unit}", start, swap, unit),
        Step(
            Action.HEALTH_UNIT,
            f"health 1/3: a new run of the unit owns port {place.slot.port}",
            "an old process on the port must not pass for the new one",
            swap,
            unit,
        ),
        Step(
            Action.HEALTH_HTTP,
            f"health 2/3: ready, {_mode(candidate)}",
            "the service must say that it runs what was deployed",
            swap,
            unit,
        ),
        Step(
            Action.HEALTH_MODEL,
            "health 3/3: it generates text, greedily and sampled"
            if candidate.service.backend == "sglang"
            else "health 3/3: a generation equals the one without drafting",
            "a server can be ready and not generate"
            if candidate.service.backend == "sglang"
            else "speculative decoding must not change the text",
            swap,
            unit,
        ),
    ]


def _confirm(wish: Wish, facts: HostFacts) -> list[Step]:
    steps = []
    if facts.systemd and facts.systemd_run:
        steps.append(
            Step(
                Action.DISARM_REVERT,
                "disarm the dead-man revert",
                "the new generation is good",
                Phase.SWAP,
            )
        )
    steps.append(
        Step(
            Action.MARK_GOOD,
            f"mark generation {wish.candidate.number} good and start it at boot",
            "a failed deploy returns to it",
            Phase.CONFIRM,
            (wish.candidate.unit,),
        )
    )
    return steps


def _release(place: Place) -> str:
    gpus = ", ".join(map(str, place.slot.gpus))
    memory = f", and the memory of GPU {gpus} is free" if gpus else ""
    return f"wait until port {place.slot.port} and the processes are gone{memory}"


def _mode(candidate: Candidate) -> str:
    return f"mode {candidate.service.mode}, budget {candidate.service.budget}"


def _notes(wish: Wish, facts: HostFacts, back: int | None) -> list[str]:
    service, notes = wish.candidate.service, []
    if facts.running_units(wish.place.slot_name):
        notes.append(
            f"port {service.port} is closed from `stop` until the new service is ready, "
            f"at most {service.start_timeout} s"
        )
    if not facts.systemd:
        notes.append(
            "no systemd runs here: units run through docker-systemctl-replacement, which restarts "
            "nothing, and no dead-man revert can be armed"
        )
    elif not facts.systemd_run:
        notes.append("`systemd-run` is not installed: no dead-man revert can be armed")
    if back is None:
        notes.append("no good generation to return to: if this one fails, the slot is left empty")
    else:
        notes.append(f"if it fails, generation {back} comes back")
    return notes


def _unit_diff(wish: Wish, facts: HostFacts) -> str:
    running = [unit.name for unit in facts.running_units(wish.place.slot_name)]
    candidate = wish.candidate
    before = next((name for name in [*running, candidate.unit] if name in facts.unit_files), "")
    old = facts.unit_files.get(before, "")
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        candidate.unit_text.splitlines(keepends=True),
        fromfile=before or "/dev/null",
        tofile=candidate.unit,
    )
    return "".join(lines)
