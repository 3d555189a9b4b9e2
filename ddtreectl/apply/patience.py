"""A second, longer question to a service that is too busy to answer a probe."""

from dataclasses import replace

from ddtreectl.apply.session import Session
from ddtreectl.facts.host import HTTP_TIMEOUT, HostFacts
from ddtreectl.facts.http import Request, base_url
from ddtreectl.plan.swap import READINESS, silent
from ddtreectl.plan.wish import Wish

PATIENCE = 30.0
"""Seconds for each of the paths; SGLang's own health check waits 20 s for a busy scheduler."""


def patient(session: Session, wish: Wish, facts: HostFacts) -> HostFacts:
    """The facts, where a service that only failed to answer in time has been asked again."""
    if not silent(wish, facts):
        return facts
    session.report.say(
        f"  ! {wish.candidate.unit} runs and has not answered within {HTTP_TIMEOUT:g} s; "
        f"it is given {PATIENCE:g} s"
    )
    service = wish.candidate.service
    base, key = base_url(service.address, service.port), session.keys.get(wish.place.slot_name)
    requests = [Request(f"{base}{path}", PATIENCE, key_file=key) for path in READINESS]
    answers = session.ask(requests, PATIENCE * len(requests) + 10.0)
    return replace(facts, answers={**facts.answers, **{found.url: found for found in answers}})
