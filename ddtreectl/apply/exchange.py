"""The part of a swap in which the slot serves nothing: stop, see everything gone, start."""

import time
from collections.abc import Callable, Iterator, Sequence

from ddtreectl.apply.interrupts import Interrupts
from ddtreectl.apply.session import Session
from ddtreectl.errors import StepError
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.processes import Process
from ddtreectl.hosts.protocol import check
from ddtreectl.inventory.select import Place
from ddtreectl.plan.refusals import own_pids
from ddtreectl.plan.step import Candidate

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
COMMAND_DEADLINE = 60.0
STOP_DEADLINE = 660.0
RELEASE_DEADLINE = 90.0
TERM_AFTER, KILL_AFTER = 2.0, 15.0


def pauses(interrupts: Interrupts) -> Iterator[None]:
    """Pause between two looks: briefly at first, as most things take a moment, and then longer."""
    pause = FIRST_PAUSE
    while True:
        interrupts.sleep(pause)
        yield
        pause = min(1.5 * pause, LONGEST_PAUSE)


def stop(session: Session, units: Sequence[str]) -> None:
    """Stop `units`; one that does not run is no error. Their TimeoutStopSec bounds the wait."""
    for unit in units:
        result = session.host.run(session.supervisor.stop(unit), deadline=STOP_DEADLINE)
        after = session.look().unit(unit)
        if after.running and after.active != "deactivating":
            raise StepError(f"unit `{unit}` does not stop: {after}", cause=result.said)


def await_release(session: Session, place: Place, *, port_wanted: bool) -> None:
    """Wait until no process of the slot is left and, if it is wanted, the slot's port is free.

    A process that carries the slot's mark and outlives its unit is ours: it is asked to end, then
    killed. Anything else is named and left alone.
    """
    began = time.monotonic()
    signalled: dict[int, str] = {}
    pause = pauses(session.interrupts)
    while True:
        facts = session.look()
        own = own_pids(place, facts)
        left = [facts.processes[pid] for pid in sorted(own) if pid in facts.processes]
        pids = facts.listener_pids(place.slot.port) if port_wanted else []
        foreign = [pid for pid in pids if pid not in own]
        taken = port_wanted and facts.port_taken(place.slot.port)
        if not taken and not left:
            return
        waited = time.monotonic() - began
        if foreign:
            process = facts.processes.get(foreign[0]) or f"pid {foreign[0]}"
            raise StepError(
                f"port {place.slot.port} of `{place.host_name}` was taken by {process}",
                hint="that process is not ours to stop; free the port and try again",
            )
        if waited > RELEASE_DEADLINE:
            raise StepError(_not_released(place, left), hint=_stuck_hint(left))
        names = ", ".join(f"pid {process.pid}" for process in left)
        session.report.detail(f"left: {names or f'port {place.slot.port}'}")
        for process in left:
            wanted = "KILL" if waited > KILL_AFTER else "TERM" if waited > TERM_AFTER else None
            if wanted and signalled.get(process.pid) != wanted:
                signalled[process.pid] = wanted
                _signal(session, process, wanted)
        next(pause)


def _signal(session: Session, process: Process, name: str) -> None:
    """Signal a process, if it is still the one that was seen."""
    pid = process.pid
    same = f"[ \"$(sed 's/.*) //' /proc/{pid}/stat | cut -d' ' -f20)\" = {process.ticks} ]"
    session.host.run(
        ["sh", "-c", f"{same} && kill -{name} {pid}"],
        deadline=COMMAND_DEADLINE,
    )


def _not_released(place: Place, left: Sequence[Process]) -> str:
    if left:
        listed = "; ".join(str(process) for process in left)
        return f"the slot `{place.slot_name}` is not free: {listed}"
    return f"port {place.slot.port} of `{place.host_name}` is not free"


def _stuck_hint(left: Sequence[Process]) -> str:
    if any(process.state == "D" for process in left):
        return "a process is stuck in the kernel (state D): the host has to be rebooted"
    return ""


def install_unit(session: Session, candidate: Candidate) -> None:
    """Put the unit file in its place and let the service manager read it."""
    supervisor = session.supervisor
    path, content = session.layout.unit(candidate.unit), candidate.unit_text.encode()
    if session.host.read(path) != content:  # on the way back it is mostly there, disk full or not
        session.host.put(path, content)
    check(
        session.host.run(supervisor.reload(), deadline=COMMAND_DEADLINE),
        "the service manager cannot read its units again",
    )
    unit = session.look().unit(candidate.unit)
    if unit.load != "loaded" or unit.needs_reload:
        raise StepError(
            f"unit `{candidate.unit}` is not loaded as written",
            cause=f"load state {unit.load}, needs daemon-reload: {unit.needs_reload}",
            hint=f"is {session.layout.unit_dir} a folder that the service manager reads?",
        )
    if unit.fragment is not None and unit.fragment != path:
        raise StepError(
            f"unit `{candidate.unit}` is not the one that was written to {path}",
            cause=f"the service manager has loaded {unit.fragment}",
            hint="a file that hides it was not written by ddtreectl; move it away",
        )


def start(session: Session, candidate: Candidate) -> int | None:
    """Begin to start the unit. Returns the process id of the start job, where it runs apart."""
    supervisor = session.supervisor
    session.host.run(supervisor.reset_failed(candidate.unit), deadline=COMMAND_DEADLINE)
    result = session.host.run(
        supervisor.start(candidate.unit, candidate.service.start_timeout), deadline=COMMAND_DEADLINE
    )
    check(result, f"unit `{candidate.unit}` cannot be started")
    job = result.stdout.strip()
    return int(job) if job.isdecimal() else None


def end_job(session: Session, job: int | None, unit: str) -> None:
    """End a start job that still waits, so that it does not hold the unit's lock."""
    if job is None:
        return
    mine = f"tr '\\0' ' ' </proc/{job}/cmdline 2>/dev/null | grep -qF 'start {unit}'"
    session.host.run(["sh", "-c", f"{mine} && kill {job}; true"], deadline=COMMAND_DEADLINE)


def poll(
    session: Session, deadline: float, what: str, look: Callable[[HostFacts], str | None]
) -> None:
    """Look at the host until `look` returns None; what it returns is what is still missing.

    Raises:
        StepError: it is still missing after `deadline` seconds.
    """
    began, pause = time.monotonic(), pauses(session.interrupts)
    while (missing := look(session.look())) is not None:
        if time.monotonic() - began > deadline:
            raise StepError(f"{what} within {deadline:.0f} s", cause=missing)
        session.report.detail(missing)
        next(pause)
