"""A plan as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ddtreectl.inventory.service import ServiceSpec


class Phase(StrEnum):
    """What a failure in a step means.

    PREPARE: nothing that serves has been touched; a failure leaves it as it is.
    SWAP: the slot is between two services; a failure brings the old one back.
    CONFIRM: the new service is healthy; what is left are the records. A failure brings the old one
        back all the same, because the records would send the host back to it at the next boot.
    """

    PREPARE = "prepare"
    SWAP = "swap"
    CONFIRM = "confirm"


class Action(StrEnum):
    """What a step does; `apply` has one function for each."""

    BUILD_ENVIRONMENT = "build-environment"
    STAGE_GENERATION = "stage-generation"
    CHECK_UNIT = "check-unit"
    CHECK_MODEL = "check-model"
    BEGIN_SWAP = "begin-swap"
    ARM_REVERT = "arm-revert"
    TAKE_OUT = "take-out"
    AWAIT_IDLE = "await-idle"
    STOP = "stop"
    AWAIT_RELEASE = "await-release"
    INSTALL_UNIT = "install-unit"
    START = "start"
    HEALTH_UNIT = "health-unit"
    HEALTH_HTTP = "health-http"
    HEALTH_MODEL = "health-model"
    DISARM_REVERT = "disarm-revert"
    MARK_GOOD = "mark-good"
    PUT_IN = "put-in"
    MARK_STOPPED = "mark-stopped"


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        action: what is done.
        title: the same for a reader, in the imperative.
        reason: why it is in the plan.
        phase: what a failure means.
        units: the units that it acts on, where it does.
        alone: of a worker that is taken out of the router: whether nothing else serves its model,
            which a reader of the plan is told.
    """

    action: Action
    title: str
    reason: str
    phase: Phase
    units: tuple[str, ...] = ()
    alone: bool = False


@dataclass(frozen=True)
class Candidate:
    """The generation that a plan brings into service.

    Attributes:
        number: its number.
        service: what it serves.
        environment: the name of its environment.
        unit: the name of its unit.
        unit_text: its unit file.
        environment_file: the content of the file that the unit's EnvironmentFile= names.
        staged: whether it is on the host already, as it is in a rollback.
        gpus: the UUIDs of the cards that it is bound to.
        scripts: what its unit runs before it starts, by the name of the file.
    """

    number: int
    service: ServiceSpec
    environment: str
    unit: str
    unit_text: str
    environment_file: str
    staged: bool
    gpus: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Steps for one slot of one host.

    Attributes:
        host: the host.
        slot: the slot.
        steps: in order; none means that everything is as asked already.
        candidate: the generation that will serve, or None where the slot ends up empty.
        back: the generation to return to when a swap fails, if there is one.
        refusals: why the plan must not be applied; each with its reason.
        notes: what the operator should know.
        unit_diff: how the installed unit changes, as a unified diff.
    """

    host: str
    slot: str
    steps: tuple[Step, ...]
    candidate: Candidate | None
    back: int | None = None
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unit_diff: str = field(default="", compare=False)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.steps
