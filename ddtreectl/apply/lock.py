"""The lock of a host: one operator at a time, and never one for ever.

The lock is a file on the host that names its owner. It is made, taken over and removed under
`flock` of a guard file, so that these never overlap. The owner renews it while it works. It is
stale, and may be taken over, once its owner's process is known to be gone, or once it has not been
renewed for `STALE_AFTER` seconds.
"""

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from shlex import quote

from ddtreectl.apply.interrupts import Interrupts
from ddtreectl.apply.operator import Operator, now, start_ticks
from ddtreectl.errors import DdtreectlError, LockedError, UnreachableError
from ddtreectl.facts.output import as_int, json_object
from ddtreectl.facts.records import LockOwner, parse_lock
from ddtreectl.hosts.protocol import Host, Result, check
from ddtreectl.inventory.layout import Layout

RENEW_EVERY = 10.0
STALE_AFTER = 60.0
_DEADLINE = 30.0
_HELD, _TAKEN = 75, 76
_WIND_UP = "systemctl try-restart 'ddtree-revert-*.timer' 2>/dev/null; true"


def stale(lock: LockOwner, operator: Operator) -> bool:
    """Whether nobody works under `lock` any more, as far as `operator`'s machine can tell."""
    if lock.host == operator.host and lock.boot == operator.boot:
        return start_ticks(lock.pid) != lock.ticks
    return lock.age > STALE_AFTER


class HostLock:
    """The lock of one host, as held by one operator.

    Args:
        host: the host.
        layout: where its lock lies.
        operator: who wants it.
    """

    def __init__(self, host: Host, layout: Layout, operator: Operator) -> None:
        self._host = host
        self._path = layout.lock
        self._root = layout.root
        self._operator = operator
        self._token = secrets.token_hex(8)
        self._ended = threading.Event()
        self._lost = False
        self.taken_over: LockOwner | None = None

    @contextmanager
    def held(self, interrupts: Interrupts) -> Iterator[None]:
        """Hold the lock while the block runs; release it however the block ends.

        Raises:
            LockedError: another operator holds it.
        """
        with interrupts.shield():
            self._acquire()
        renewal = threading.Thread(target=self._renew, daemon=True)
        renewal.start()
        try:
            yield
        finally:
            with interrupts.shield():
                self._ended.set()
                renewal.join()
                with suppress(UnreachableError):  # the lock of an owner who is gone gets stale
                    self._guarded(
                        f"grep -q {self._token} {quote(self._path)} && rm -f {quote(self._path)}"
                    )

    def check(self) -> None:
        """Make sure that nobody has taken the lock over.

        Raises:
            LockedError: someone has.
        """
        if self._lost:
            raise LockedError(
                f"the lock of `{self._host.name}` was taken over by another operator",
                hint=f"see what happened with `ddtreectl status {self._host.name}`",
            )

    def _acquire(self) -> None:
        content = {"owner": self._operator.user, **asdict(self._operator)}
        content |= {"since": now(), "token": self._token}
        del content["user"]
        path = quote(self._path)
        make = (
            f'if [ -e {path} ]; then echo "$(($(date +%s) - $(stat -c %Y {path})))"; '
            f"sha256sum <{path}; cat {path}; exit {_HELD}; fi; "
            f"cat >{path}.new && mv {path}.new {path}"
        )
        writable = f"is the disk of {self._root} full, or mounted read-only?"
        for _ in range(2):
            result = self._guarded(make, json.dumps(content))
            if result.returncode != _HELD:
                check(result, f"the lock of `{self._host.name}` cannot be taken", hint=writable)
                return
            age, _, rest = result.stdout.partition("\n")
            fingerprint, _, text = rest.partition("\n")
            owner = parse_lock(json_object(text), float(as_int(age) or 0))
            if not stale(owner, self._operator):
                raise LockedError(
                    f"`{self._host.name}` is locked by {owner}",
                    hint=f"a lock that is not renewed for {STALE_AFTER:.0f} s may be taken over"
                    if owner.damaged
                    else "wait until that command has ended, and try again",
                )
            self.taken_over = owner
            # Only the lock that was judged, in case another operator was faster.
            same = f'[ "$(sha256sum <{path})" = {quote(fingerprint)} ]'
            self._guarded(f"{same} && rm -f {path}")
        raise LockedError(f"the lock of `{self._host.name}` changes hands too fast")

    def _renew(self) -> None:
        path = quote(self._path)
        touch = f"grep -q {self._token} {path} || exit {_TAKEN}; touch {path}; {_WIND_UP}"
        while not self._ended.wait(RENEW_EVERY):
            try:
                if self._guarded(touch).returncode == _TAKEN:
                    self._lost = True
                    return
            except DdtreectlError:
                continue  # a host that does not answer now may answer at the next renewal

    def _guarded(self, command: str, stdin: str = "") -> Result:
        root = quote(self._root)
        script = (
            f"mkdir -p {root} && exec 9>>{root}/.lock-guard && flock -w 10 9 && {{ {command}; }}"
        )
        return self._host.run(["sh", "-c", script], deadline=_DEADLINE, stdin=stdin)
