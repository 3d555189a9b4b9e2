"""What is seen of a failed service before it is taken down."""

from ddtreectl.apply.health import Check, run_of
from ddtreectl.apply.session import Session
from ddtreectl.errors import DdtreectlError
from ddtreectl.facts.host import HostFacts
from ddtreectl.inventory.model import HostEntry
from ddtreectl.plan.gpu_report import gpu_report

JOURNAL_LINES = 40
SEEN = ("units", "ports", "processes", "gpus", "kernel_log", "records")
DEADLINE = 30.0


def gather(session: Session, check: Check, mark: str) -> tuple[str, ...]:
    """Unit, last HTTP answer, GPUs and journal of the run that failed, as lines to read."""
    unit_name = check.candidate.unit
    try:
        facts = session.gather(only=SEEN)
        unit = facts.unit(unit_name)
        invocation = unit.invocation or (check.run[2] if check.run else None)
        journal = session.host.run(
            session.supervisor.journal_since(unit_name, mark, invocation, JOURNAL_LINES),
            deadline=DEADLINE,
        )
    except DdtreectlError as error:
        return (f"nothing more could be seen: {error.message}",)
    run = run_of(facts, unit)
    lines = [f"unit: {unit}, {'main pid ' + str(run[0]) if run else 'no process'}"]
    if check.answer is not None:
        lines.append(f"http: {check.answer}")
    lines += gpus(session.host.name, session.entry, facts)
    said = journal.stdout.splitlines()
    lines.append(f"journal of this run ({len(said)} lines):" if said else "journal: empty")
    return (*lines, *(f"  {line}" for line in said))


def gpus(name: str, entry: HostEntry, facts: HostFacts) -> list[str]:
    """What the GPUs hold, and what is wrong with them: an Xid may be why a service has ended."""
    if facts.gpus.state == "absent":
        return []
    rows = [f"gpu {g.index}: {g.memory_used_mib}/{g.memory_total_mib} MiB" for g in facts.gpus.gpus]
    rows = rows or [f"gpus: {facts.gpus.state} {facts.gpus.said}".strip()]
    return [*rows, *(f"gpu: {remark}" for remark in gpu_report(name, entry, facts).remarks)]
