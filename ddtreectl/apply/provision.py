"""Provision: bring a finished environment to a host before anything is deployed from it."""

from dataclasses import dataclass

from ddtreectl.apply.environments import BuildAction, EnvironmentBuilder, ingredients
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.locked import locked
from ddtreectl.apply.session import Session
from ddtreectl.env.backends import BackendName
from ddtreectl.env.request import Request, provisioned, resolve
from ddtreectl.errors import RefusedError
from ddtreectl.facts.gpu import unknown
from ddtreectl.facts.host import HostFacts
from ddtreectl.inventory.environment import EnvironmentSettings
from ddtreectl.inventory.model import Inventory
from ddtreectl.inventory.select import Place, service_for
from ddtreectl.inventory.service import Mode
from ddtreectl.units.render import render

LOOK = "look at the host"
MIB = 1 << 20
CPU_BYTES, GPU_BYTES = 3 << 30, 12 << 30
"""What an environment takes at the most, where no wheelhouse says it."""

INODES = 50_000

TOOL_BYTES = 64 << 20
"""Room for uv and for records."""


@dataclass(frozen=True)
class ProvisionStep:
    """A step as a reader sees it."""

    action: BuildAction
    title: str
    reason: str


@dataclass(frozen=True)
class ProvisionPlan:
    """What a provision does.

    Attributes:
        host: the host.
        backend: the backend.
        environment: the name of the environment.
        torch: the version of torch.
        build: the CUDA build, or `cpu`.
        reason: why it is that build.
        steps: in order; none where the host has it all.
        refusals: why it must not be done.
    """

    host: str
    backend: str
    environment: str
    torch: str
    build: str
    reason: str
    steps: tuple[ProvisionStep, ...]
    refusals: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.steps


class Provisioning:
    """Provisions one host.

    Args:
        session: the operator at work on it.
        inventory: the inventory that it is in.
        backend: what its environment is to serve.
        settings: what the environment is built from.
    """

    def __init__(
        self,
        session: Session,
        inventory: Inventory,
        backend: BackendName,
        settings: EnvironmentSettings,
    ) -> None:
        self._session = session
        self._inventory = inventory
        self._backend: BackendName = backend
        self._settings = settings

    def plan(self) -> ProvisionPlan:
        """What `provision` would do now. Changes nothing.

        Raises:
            RefusedError: no environment fits the host.
        """
        facts = self._look()
        request = self._resolve(facts)
        return self._plan(request, self._builder(request, facts), facts)

    def provision(self, *, lock_wait: float = 0.0) -> ProvisionPlan:
        """Build, verify and record the environment, as far as the host does not have it.

        Raises:
            RefusedError: no environment fits the host, or its disk is too small.
            StepError: a step failed; nothing that looks finished is left.
        """
        session = self._session
        lock = HostLock(session.host, session.layout, session.operator, wait=lock_wait)
        with locked(session, lock):
            with session.report.step(LOOK):
                facts = self._look()
                request = self._resolve(facts)
                builder = self._builder(request, facts)
                plan = self._plan(request, builder, facts)
            if plan.refusals:
                raise RefusedError(
                    f"`{plan.host}` cannot be provisioned now: {plan.refusals[0]}",
                    cause="\n".join(plan.refusals[1:]),
                    hint="nothing was changed",
                )
            if plan.empty:
                return plan
            session.audit(
                "provision", command=session.operator.command, environment=plan.environment
            )
            for step in builder.steps():
                lock.check()
                lock.fence.doing = step.action.value
                with session.report.step(step.title):
                    step.act()
            session.audit("provision-done", environment=plan.environment)
        return plan

    def _look(self) -> HostFacts:
        return self._session.certain("systemd", "python", "disk", "driver", "gpus", "records")

    def _resolve(self, facts: HostFacts) -> Request:
        """The environment that is asked for; without a wheelhouse here, from that of the host."""
        session, backend = self._session, self._backend
        record = facts.records.provisioned.get(backend)
        if self._settings.wheelhouse is None and record is not None and record.wheelhouse:
            entry = session.entry.model_copy(update={"environment": self._settings})
            return provisioned(entry, facts, ingredients(), backend)
        return resolve(session.entry, facts, ingredients(), backend, self._settings)

    def _builder(self, request: Request, facts: HostFacts) -> EnvironmentBuilder:
        text = unit_of(self._session, self._inventory, request.environment, facts)
        return EnvironmentBuilder(self._session, request, facts, text)

    def _plan(
        self, request: Request, builder: EnvironmentBuilder, facts: HostFacts
    ) -> ProvisionPlan:
        return ProvisionPlan(
            host=self._session.host.name,
            backend=self._backend,
            environment=request.environment,
            torch=request.lock.torch if request.lock else "",
            build=request.choice.build,
            reason=request.choice.reason,
            steps=tuple(ProvisionStep(s.action, s.title, s.reason) for s in builder.steps()),
            refusals=tuple(self._refusals(request, builder, facts)),
        )

    def _refusals(
        self, request: Request, builder: EnvironmentBuilder, facts: HostFacts
    ) -> list[str]:
        """Whether the disk has room for what is sent and what is unpacked."""
        disk = facts.disk.get(self._session.layout.environments)
        if builder.finished or disk is None:
            return []
        size, inodes = (CPU_BYTES if request.choice.build == "cpu" else GPU_BYTES), INODES
        if request.wheelhouse is not None and facts.python is not None:
            from ddtreectl.env.wheelhouse import tags_of

            _, sent = builder.missing()
            size, inodes = request.wheelhouse.needs(tags_of(facts.python))
            size += sent + TOOL_BYTES
        found = []
        if disk.free_bytes < size:
            found.append(
                f"the disk of {disk.path} has {disk.free_bytes // MIB} MiB free, and "
                f"{size // MIB} MiB are needed"
            )
        if disk.free_inodes is not None and disk.free_inodes < inodes:
            found.append(
                f"the disk of {disk.path} has {disk.free_inodes} inodes free, and {inodes} are "
                "needed"
            )
        return found


def unit_of(session: Session, inventory: Inventory, environment: str, facts: HostFacts) -> str:
    """A unit of the host's first slot that has a GPU, or of its first.

    Its sandbox is the one that an environment is verified in.
    """
    name, entry = session.host.name, session.entry
    slots = sorted(entry.slots.items(), key=lambda item: not item[1].gpus)
    place = Place(name, entry, *slots[0])
    service = service_for(inventory, place, Mode.LINEAR)
    gpus = [facts.gpus.at(index) or unknown(index) for index in place.slot.gpus]
    rendered = render(
        layout=place.layout,
        slot=place.slot_name,
        service=service,
        generation=1,
        environment=environment,
        gpus=gpus,
    )
    return rendered.text
