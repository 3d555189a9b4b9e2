"""Environments of other hosts, for a host that can have none of its own."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ddtreectl.apply.interrupts import InterruptedByOperatorError
from ddtreectl.apply.provision import Provisioning
from ddtreectl.apply.session import Session
from ddtreectl.apply.takeover import Takeover, TakeoverPlan, current
from ddtreectl.env.backends import BACKENDS, BackendName
from ddtreectl.errors import DdtreectlError, RefusedError, StepError, UsageError
from ddtreectl.facts.host import HostFacts
from ddtreectl.inventory.model import Inventory

Fitting = tuple[TakeoverPlan | None, tuple[str, ...]]


@dataclass
class Donors:
    """The hosts of a fleet that have a finished environment.

    Attributes:
        inventory: the fleet.
        sessions: with each host.
        facts: what was found, by host.
        first: the host that is asked before the others.
    """

    inventory: Inventory
    sessions: Mapping[str, Session]
    facts: Mapping[str, HostFacts]
    first: str
    _known: dict[tuple[str, str], Fitting] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fitting(self, host: str, backend: BackendName) -> Fitting:
        """An environment that fits `host` as it is, or None and why those that there are do not."""
        with self._lock:
            if (host, backend) not in self._known:
                self._known[host, backend] = self._fitting(host, backend)
            return self._known[host, backend]

    def _fitting(self, host: str, backend: BackendName) -> Fitting:
        told = []
        for name in self._givers(host, backend):
            try:
                plan = self._takeover(host, name, backend).plan()
            except DdtreectlError as error:
                told.append(f"the environment of {name}: {_words(error)}")
                continue
            if not plan.refusals:
                return plan, ()
            told.append(f"the environment of {name} does not fit: {'; '.join(plan.refusals)}")
        return None, tuple(told or ["no other host has a finished environment"])

    def take(self, host: str, giver: str, backend: BackendName, lock_wait: float) -> None:
        """Take the environment of `giver` over to `host`.

        Raises:
            DdtreectlError: it does not fit, or a step failed; nothing that looks finished is left.
        """
        self._takeover(host, giver, backend).take(lock_wait=lock_wait)

    def provide(
        self, host: str, backend: BackendName, lock_wait: float, say: Callable[[str], None]
    ) -> None:
        """Build an environment on `host`, or take over the first that fits where that fails.

        Raises:
            RefusedError: there is none; the cause names each mismatch.
            UnreachableError: the host is gone.
        """
        session = self.sessions[host]
        settings = session.entry.environment
        told = []
        try:
            Provisioning(session, self.inventory, backend, settings).provision(lock_wait=lock_wait)
        except (StepError, RefusedError, UsageError) as failure:
            _unless_interrupted(failure)
            say(f"  ! {_words(failure)}")
            told.append(_words(failure))
            own = failure
        else:
            return
        for giver in self._givers(host, backend):
            say(f"  taking the environment of {giver} over instead")
            try:
                self.take(host, giver, backend, lock_wait)
            except (StepError, RefusedError, UsageError) as failure:
                _unless_interrupted(failure)
                say(f"  ! {_words(failure)}")
                told.append(_words(failure))
            else:
                return
        raise RefusedError(
            f"`{host}` can have no environment for backend `{backend}`",
            cause="\n".join(told),
            hint=own.hint or f"`ddtreectl provision {host} --wheelhouse DIR` brings one",
        ) from own

    def _givers(self, host: str, backend: BackendName) -> Iterator[str]:
        for name in dict.fromkeys([self.first, *self.facts]):
            facts = self.facts.get(name)
            if name != host and facts is not None and current(facts, BACKENDS[backend]):
                yield name

    def _takeover(self, host: str, giver: str, backend: BackendName) -> Takeover:
        session, source = self.sessions[host], self.sessions[giver]
        return Takeover(session, source, backend, session.entry.environment, self.inventory)


def _words(error: DdtreectlError) -> str:
    return " ".join(f"{error.message} {error.cause}".split())


def _unless_interrupted(error: DdtreectlError) -> None:
    """Ctrl-C that a step has wrapped is no failure of it."""
    if isinstance(error.__cause__, InterruptedByOperatorError):
        raise error.__cause__ from error
