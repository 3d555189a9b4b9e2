"""The slow probe: has services generate. A server can be ready and its scheduler hang."""

from dataclasses import replace

from ddtreectl.apply.session import Session
from ddtreectl.facts.http import Answer, Request, base_url
from ddtreectl.facts.records import Generation
from ddtreectl.plan.status import HostStatus, ServiceStatus

TIMEOUT = 60.0
PROMPT = "1, 2, 3,"


def with_generations(session: Session, host: HostStatus, records: list[Generation]) -> HostStatus:
    """The status of a host after each of its healthy services was asked for one token.

    Args:
        session: the operator at work on the host.
        host: its status so far.
        records: the generations of the host, which say where its services are and how to ask.
    """
    asked = {
        service.slot: request
        for service in host.services
        if service.health == "healthy" and (request := _request(session, service, records))
    }
    if not asked:
        return host
    answers = session.ask(list(asked.values()), TIMEOUT * len(asked) + 10.0)
    of_slot = dict(zip(asked, answers, strict=True))
    return replace(
        host, services=tuple(_judged(entry, of_slot.get(entry.slot)) for entry in host.services)
    )


def _request(session: Session, service: ServiceStatus, records: list[Generation]) -> Request | None:
    spec = next(
        (r.service for r in records if (r.slot, r.number) == (service.slot, service.generation)),
        None,
    )
    if spec is None:
        return None
    base = base_url(session.entry.slots[service.slot].address, service.port)
    if spec.backend == "sglang":
        sampling = {"max_new_tokens": 1, "temperature": 0}
        return Request(f"{base}/generate", TIMEOUT, {"text": PROMPT, "sampling_params": sampling})
    body: dict[str, object] = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}
    return Request(f"{base}/v1/completions", TIMEOUT, body, key_file=spec.api_key)


def _judged(service: ServiceStatus, answer: Answer | None) -> ServiceStatus:
    if answer is None or answer.ok:
        return service
    problem = f"it is ready and does not generate: {answer}"
    return replace(service, health="unhealthy", problem=problem)
