"""The lock of a host: one operator at a time, and never one for ever.

The lock is a file on the host that names its owner. It is made, taken over and removed under
`flock` of a guard file, so that these never overlap. The owner renews it while it works. It is
stale, and may be taken over, once its owner's process is known to be gone, or once it has not been
renewed for `STALE_AFTER` seconds.
"""

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from shlex import quote

from ddtreectl.apply.interrupts import InterruptedByOperatorError, Interrupts
from ddtreectl.apply.operator import Operator, now, start_ticks
from ddtreectl.apply.report import Report
from ddtreectl.errors import DdtreectlError, LockedError, UnreachableError
from ddtreectl.facts.output import as_int, json_object
from ddtreectl.facts.record_files import parse_lock
from ddtreectl.facts.records import LockOwner, Records
from ddtreectl.hosts.fence import Fence, end_commands
from ddtreectl.hosts.protocol import Host, Result, check
from ddtreectl.inventory.layout import Layout

RENEW_EVERY = 10.0
RENEWALS = 4
"""How many renewals a host expects before it takes an operator for lost."""

STALE_AFTER = 60.0
LOOK_EVERY = 2.0
_DEADLINE = 30.0
GUARD = ".lock-guard"
BALLAST = 8192
"""Bytes in the guard file that make room for a lock on a full disk, so that `prune` can free it."""

_HELD, _TAKEN = 75, 76
_WIND_UP = "systemctl try-restart 'ddtree-revert-*.timer' 2>/dev/null; true"


def holder(records: Records, operator: Operator) -> LockOwner | None:
    """Who works on a host, or None where nobody does or where the lock is stale."""
    lock = records.lock
    return None if lock is None or stale(lock, operator) else lock


def stale(lock: LockOwner, operator: Operator) -> bool:
    """Whether nobody works under `lock` any more, as far as `operator`'s machine can tell.

    Everything that asks whether a lock still counts asks here.
    """
    if lock.host == operator.host and lock.boot == operator.boot:
        return start_ticks(lock.pid) != lock.ticks
    return lock.age > STALE_AFTER


class HostLock:
    """The lock of one host, as held by one operator.

    Args:
        host: the host.
        layout: where its lock lies.
        operator: who wants it.
        revert_after: seconds without a renewal after which the host returns by itself.
        wait: seconds to wait for another operator to finish.
    """

    def __init__(
        self,
        host: Host,
        layout: Layout,
        operator: Operator,
        *,
        revert_after: float = RENEWALS * RENEW_EVERY,
        wait: float = 0.0,
    ) -> None:
        self._host = host
        self._renew_every = min(RENEW_EVERY, revert_after / RENEWALS)
        self._wait = wait
        self._path = layout.lock
        self._root = layout.root
        self._operator = operator
        self._token = secrets.token_hex(8)
        self.fence = Fence(self._token, layout.lock)
        self._ended = threading.Event()
        self._lost = False
        self.taken_over: LockOwner | None = None

    @contextmanager
    def held(self, interrupts: Interrupts, report: Report) -> Iterator[None]:
        """Hold the lock while the block runs; release it however the block ends.

        Raises:
            LockedError: another operator holds it.
        """
        try:
            if self._wait:
                with report.step(f"take the lock of `{self._host.name}`"):
                    self._acquire(interrupts, report)
            else:
                self._acquire(interrupts, report)
        except InterruptedByOperatorError:  # it may have been taken by then
            with interrupts.shield():
                self._release()
            raise
        renewal = threading.Thread(target=self._renew, daemon=True)
        renewal.start()
        try:
            yield
        finally:
            with interrupts.shield():
                self._ended.set()
                renewal.join()
                self._release()

    def check(self) -> None:
        """Make sure that nobody has taken the lock over.

        Raises:
            LockedError: someone has.
        """
        if self._lost:
            raise self.fence.lost(self._host.name)

    def _acquire(self, interrupts: Interrupts, report: Report) -> None:
        """Take the lock, when the one who holds it has finished, if that is to be waited for."""
        began = time.monotonic()
        while True:
            try:
                with interrupts.shield():
                    self._try_to_acquire()
            except LockedError as error:
                if time.monotonic() - began + LOOK_EVERY > self._wait:
                    raise
                report.detail(error.message)
                interrupts.sleep(LOOK_EVERY)
            else:
                return

    def _try_to_acquire(self) -> None:
        content = {"owner": self._operator.user, **asdict(self._operator)}
        content |= {"since": now(), "token": self._token}
        del content["user"]
        path, guard = quote(self._path), quote(f"{self._root}/{GUARD}")
        owner_text = quote(json.dumps(content))
        make = (
            f'if [ -e {path} ]; then echo "$(($(date +%s) - $(stat -c %Y {path})))"; '
            f"sha256sum <{path}; cat {path}; exit {_HELD}; fi; "
            f"write() {{ printf %s {owner_text} >{path}.new && mv {path}.new {path}; }}; "
            f"if write; then {self._ballast}; "
            f"else : >{guard}; write || exit 1; fi; {_WIND_UP}"
        )
        writable = f"is the disk of {self._root} full, or mounted read-only?"
        for _ in range(2):
            result = self._guarded(make)
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
                    else "`--lock-wait SECONDS` waits until that command has ended; "
                    f"`ddtreectl lock break {self._host.name} --reason …` ends its rights",
                )
            self.taken_over = owner
            # Only the lock that was judged, in case another operator was faster.
            same = f'[ "$(sha256sum <{path})" = {quote(fingerprint)} ]'
            self._guarded(f"{same} && rm -f {path}")
            self.end_commands_of(owner)
        raise LockedError(f"the lock of `{self._host.name}` changes hands too fast")

    def _release(self) -> None:
        """Remove the lock, if it is this one."""
        path = quote(self._path)
        with suppress(UnreachableError):  # the lock of an owner who is gone gets stale
            # Whoever comes next has room for a lock again, before something else takes it.
            self._guarded(f"grep -qs {self._token} {path} && rm -f {path}; {self._ballast}")

    def _renew(self) -> None:
        path = quote(self._path)
        touch = f"grep -q {self._token} {path} || exit {_TAKEN}; touch {path}; {_WIND_UP}"
        while not self._ended.wait(self._renew_every):
            try:
                if self._guarded(touch).returncode == _TAKEN:
                    self._lost = True
                    return
            except DdtreectlError:
                continue  # a host that does not answer now may answer at the next renewal

    def broken(self, of: LockOwner) -> bool:
        """Remove the lock `of` another operator. Returns whether it was still there.

        Their commands, which look for it, are let do nothing more; those in progress are ended.
        """
        path = quote(self._path)
        removed = self._guarded(
            f"grep -qsF -e {quote(of.token)} {path} && rm -f {path}"
            if not of.damaged
            else f"[ -e {path} ] && rm -f {path}"
        )
        if not of.damaged:
            self.end_commands_of(of)
        return removed.ok

    def end_commands_of(self, gone: LockOwner) -> None:
        """End what still runs on the host under the lock of an operator who has it no more."""
        if not gone.damaged:
            self._host.run(["sh", "-c", end_commands(gone.token)], deadline=_DEADLINE)

    @property
    def _ballast(self) -> str:
        guard = f"{quote(self._root)}/{GUARD}"
        return f"[ -s {guard} ] || head -c {BALLAST} /dev/urandom >{guard} 2>/dev/null || true"

    def _guarded(self, command: str) -> Result:
        """Run `command` where no other command of a lock runs meanwhile.

        What it needs stands in it: a connection that is cut may leave it half of an input.
        """
        root = quote(self._root)
        script = f"mkdir -p {root} && exec 9>>{root}/{GUARD} && flock -w 10 9 && {{ {command}; }}"
        return self._host.run(["sh", "-c", script], deadline=_DEADLINE)
