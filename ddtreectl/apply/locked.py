"""Works on a host under its lock."""

from collections.abc import Iterator
from contextlib import contextmanager

from ddtreectl.apply import moved
from ddtreectl.apply.lock import HostLock
from ddtreectl.apply.session import Session


@contextmanager
def locked(session: Session, lock: HostLock) -> Iterator[None]:
    """Hold the lock while the block runs; every command of the session looks for it meanwhile.

    Raises:
        LockedError: another operator holds it, or has taken it.
    """
    with lock.held(session.interrupts, session.report):
        free, session.host = session.host, session.host.fenced(lock.fence)
        try:
            moved.deliver(session)  # it is the first contact, perhaps
            yield
        finally:
            session.host = free
