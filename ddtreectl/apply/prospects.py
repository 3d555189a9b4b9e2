"""Finds out about every slot that might take a service: what is there, and what is brought."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddtreectl.apply import weights
from ddtreectl.apply.candidates import UNKNOWN_ENVIRONMENT, new_generation
from ddtreectl.apply.donors import Donors
from ddtreectl.apply.session import Session
from ddtreectl.env.cuda import build_of
from ddtreectl.env.request import Request
from ddtreectl.errors import DdtreectlError, UsageError
from ddtreectl.facts.host import HostFacts
from ddtreectl.hosts.pool import on_each
from ddtreectl.inventory.select import Place
from ddtreectl.inventory.service import BUNDLED, ServiceSpec
from ddtreectl.inventory.workers import out_of_reach
from ddtreectl.plan.placement import Asked, Prospect, rejections
from ddtreectl.plan.refusals import refusals
from ddtreectl.plan.wish import Wish

MIB = 1 << 20


@dataclass
class Prospects:
    """The slots of a fleet, looked at as places for services.

    Attributes:
        sessions: with each host.
        facts: what was found, by host.
        unreachable: why a host could not be looked at.
        donors: who has environments to give.
    """

    sessions: Mapping[str, Session]
    facts: Mapping[str, HostFacts]
    unreachable: Mapping[str, str]
    donors: Donors

    def of(self, asked: Asked, places: Sequence[Place]) -> list[Prospect]:
        """What is to be said of each of `places`.

        Where something has to be brought, its host is asked for what facts do not tell.
        """
        found = [self._prospect(asked, entry) for entry in places]
        asking: dict[str, list[Prospect]] = {}
        for prospect in found:
            if (prospect.objection or prospect.copied) and not any(rejections(asked, prospect)):
                asking.setdefault(prospect.place.host_name, []).append(prospect)
        told: dict[str, Prospect] = {}
        for host, outcome in on_each(
            list(asking), lambda host: [self._asked(asked.service, p) for p in asking[host]]
        ):
            if isinstance(outcome, DdtreectlError):
                silent = (outcome.message,)
                told |= {p.name: replace(p, refusals=silent) for p in asking[host]}
            else:
                told |= {prospect.name: prospect for prospect in outcome}
        return [told.get(prospect.name, prospect) for prospect in found]

    def donor(self, folder: str, first: str) -> str | None:
        """A host that has a model folder: `first`, if it has, else any other."""
        names = [first, *self.facts]
        return next((n for n in names if n in self.facts and folder in self.facts[n].folders), None)

    def _prospect(self, asked: Asked, entry: Place) -> Prospect:
        service, source = asked.service, asked.source
        facts = self.facts.get(entry.host_name)
        if facts is None:
            return Prospect(entry, None, self.unreachable.get(entry.host_name, ""))
        if len(entry.slot.gpus) != len(source.slot.gpus):
            return Prospect(entry, facts)
        copied, missing = [], []
        for folder in dict.fromkeys((service.model, service.drafter)):
            if folder == BUNDLED or folder in facts.folders:
                continue
            donor = self.donor(folder, source.host_name)
            if donor:
                copied.append((folder, self.facts[donor].weights.get(folder, 0)))
            else:
                missing.append(folder)
        folders = frozenset({*facts.folders, service.model, service.drafter})
        there = replace(facts, folders=folders)
        wish, request, objection = self._wish(service, entry, there)
        build = build_of(request.choice.build) if request and not objection else None
        against = [*refusals(replace(wish, refusal=""), there), *self._unreached(service, entry)]
        return Prospect(
            place=entry,
            facts=facts,
            refusals=tuple(against),
            misfit=_misfit(entry, facts, build.name) if build else "",
            environment=request.environment if request and not objection else UNKNOWN_ENVIRONMENT,
            missing=tuple(missing),
            copied=tuple(copied),
            objection=objection,
        )

    def _unreached(self, service: ServiceSpec, entry: Place) -> Iterator[str]:
        """Why the router would get no answer from a service in a slot behind it."""
        router = self.sessions[entry.host_name].router
        worker = router.worker(entry) if router else None
        if worker and (why := out_of_reach(worker, moved_to(service, entry))):
            yield f"the router would get no answer from the service there: {why}"

    def _wish(
        self, service: ServiceSpec, entry: Place, facts: HostFacts
    ) -> tuple[Wish, Request | None, str]:
        """The next generation there, and why its host can make no environment of its own."""
        moved = moved_to(service, entry)
        try:
            wish, request = new_generation(entry, moved, facts)
        except UsageError as error:  # its wheelhouse is not on this machine
            settings = entry.host.environment.model_copy(update={"wheelhouse": None})
            host = entry.host.model_copy(update={"environment": settings})
            wish, request = new_generation(replace(entry, host=host), moved, facts)
            return wish, request, error.message
        return wish, request, wish.refusal

    def _asked(self, service: ServiceSpec, prospect: Prospect) -> Prospect:
        host = prospect.place.host_name
        told = tuple(self._too_full(host, *copied) for copied in prospect.copied)
        found = replace(prospect, refusals=(*prospect.refusals, *filter(None, told)))
        if not prospect.objection:
            return found
        taken, mismatches = self.donors.fitting(host, service.backend)
        if taken is None:
            said = "; ".join([prospect.objection, *mismatches])
            return replace(found, refusals=(*found.refusals, said))
        return replace(found, environment=taken.environment, taken_from=taken.taken_from)

    def _too_full(self, host: str, folder: str, size: int) -> str:
        """Why a model folder cannot be copied to a host; what an earlier copy left is there."""
        room = weights.room(self.sessions[host], folder)
        if room is None or room >= size:
            return ""
        return f"the disk of {folder} has room for {room // MIB} MiB, and {size // MIB} are needed"


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
