"""From what is asked to a candidate: a new generation, or one to go back to."""

from ddtreectl.apply import generations
from ddtreectl.apply.environments import ingredients
from ddtreectl.apply.session import Session
from ddtreectl.env.request import Request, provisioned
from ddtreectl.errors import RefusedError, UsageError
from ddtreectl.facts.gpu import unknown
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.records import Generation
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.service import ServiceSpec
from ddtreectl.plan.step import Candidate
from ddtreectl.plan.wish import Wish, next_number, serving
from ddtreectl.units import sglang
from ddtreectl.units.render import render

UNKNOWN_ENVIRONMENT = "engine-unknown"


def facts_for(session: Session, service: ServiceSpec | None) -> HostFacts:
    """The facts of the host, and whether it has the model folders and API keys of `service`."""
    if service is None:
        return session.gather()
    keys = (service.api_key,) if service.api_key else ()
    return session.gather((service.model, service.drafter), key_files=keys)


def new_generation(
    place: Place,
    service: ServiceSpec,
    facts: HostFacts,
    *,
    force: bool = False,
    new_gpu: bool = False,
    guarded: tuple[str, str] | None = None,
) -> tuple[Wish, Request | None]:
    """The next generation of a slot, and the environment that fits the host.

    `guarded` has the router's URL and HOST/SLOT, where the unit is to ask before it starts.
    """
    request, refusal = None, ""
    try:
        request = provisioned(place.host, facts, ingredients(), service.backend)
    except RefusedError as error:  # a plan gives all reasons at once
        refusal = "\n".join(filter(None, [error.message, error.cause, error.hint]))
    environment = request.environment if request else UNKNOWN_ENVIRONMENT
    if service.backend == "sglang":
        weights = sum(facts.weights.get(folder, 0) for folder in (service.model, service.drafter))
        sized = sglang.start_timeout(service, weights)
        service = service.model_copy(update={"start_timeout": sized})
    number = next_number(place, facts)
    # A GPU that is not there, or not told, is what the plan refuses.
    gpus = [facts.gpus.at(index) or unknown(index) for index in place.slot.gpus]
    unit = render(
        layout=place.layout,
        slot=place.slot_name,
        service=service,
        generation=number,
        environment=environment,
        gpus=gpus,
        guarded=guarded,
        python=place.host.interpreter,
    )
    candidate = Candidate(
        number=number,
        service=service,
        environment=environment,
        unit=unit.name,
        unit_text=unit.text,
        environment_file=unit.environment_file,
        staged=False,
        gpus=tuple(gpu.uuid for gpu in gpus if gpu.uuid),
        scripts=unit.scripts,
    )
    wish = Wish(place, candidate, unit.argv, force=force, new_gpu=new_gpu, refusal=refusal)
    return wish, request


def earlier_generation(session: Session, place: Place, to: int | None) -> tuple[Wish, HostFacts]:
    """A good generation of a slot, and the facts about the host and its model folders.

    Args:
        session: the operator at work.
        place: the slot.
        to: its number; None for the one that was good before the one that serves.

    Raises:
        UsageError: there is no such generation, or it is not good.
    """
    found = _target(place, session.certain("records", "units", "unit_files"), to)
    candidate = generations.load(session, found)
    return Wish(place, candidate), facts_for(session, candidate.service)


def _target(place: Place, facts: HostFacts, to: int | None) -> Generation:
    entries = facts.records.of_slot(place.slot_name)
    where = f"`{place.slot_name}` of `{place.host_name}`"
    listed = ", ".join(f"{entry.number} ({entry.status})" for entry in entries) or "none"
    good = [entry for entry in entries if entry.status == "good"]
    if to is not None:
        for entry in good:
            if entry.number == to:
                return entry
        raise UsageError(
            f"generation {to} of {where} is not one to go back to",
            hint=f"only good generations are; there are: {listed}",
        )
    now = serving(place, facts)
    earlier = [entry for entry in good if now is None or entry.number != now.number]
    if not earlier:
        raise UsageError(
            f"there is no other good generation of {where}", hint=f"there are: {listed}"
        )
    return max(earlier, key=lambda entry: (entry.changed_at, entry.number))
