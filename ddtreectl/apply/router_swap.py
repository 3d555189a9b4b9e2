"""Takes a worker out of the router for a swap: it comes back, and its model is served meanwhile."""

import json
import time

from ddtreectl.apply import router_list
from ddtreectl.apply.exchange import pauses
from ddtreectl.apply.router import READY_WITHIN, Router, say_not_told
from ddtreectl.apply.session import Session
from ddtreectl.errors import DdtreectlError, StepError
from ddtreectl.inventory.workers import Worker
from ddtreectl.plan import standby


def take_out_for_a_swap(
    router: Router, session: Session, worker: Worker, *, back_within: float, alone: bool
) -> None:
    """Have no new request sent to `worker`, as soon as another one serves its model.

    Operators of several hosts do this at the same time, and none counts on a worker that another
    one takes out: the list changes only as long as it is what was looked at.

    Args:
        router: the router.
        session: with the worker's host; it is told there.
        worker: the worker.
        back_within: seconds after which nobody waits for it any more.
        alone: whether it is the only one of its model, and taken out all the same.

    Raises:
        StepError: others served its model when that was planned, and none does.
    """
    end = time.monotonic() + READY_WITHIN
    for _ in pauses(session.interrupts):
        try:
            kept = router_list.change(router.session, "show")
            found = router.beside(kept)
            entry = found.worker(worker.name)
            if entry is None or entry.status != "ready" or found.state != "up":
                router.take_out(session, worker)
                return
            if alone or standby.replaced(found, entry):
                models = json.dumps(sorted(entry.models))
                words = (worker.name, str(kept.revision), str(back_within), models)
                if router_list.change(router.session, "remove", *words).made:
                    break
                continue
        except DdtreectlError as error:
            say_not_told(session, error)
            return
        waiting = standby.coming(found, entry)
        session.report.detail(
            f"it is the last one in the router; {', '.join(waiting)} comes back first"
            if waiting
            else "it is the last one in the router"
        )
        if waiting:
            end = time.monotonic() + READY_WITHIN
        elif time.monotonic() > end:
            model = ", ".join(sorted(entry.models)) or "what it serves"
            raise StepError(
                f"{worker.name} is the last worker that the router has ready for `{model}`",
                cause="there was another one when this was planned",
                hint="`ddtreectl router status` shows the others; the same command again "
                "takes it out all the same",
            )
    router.await_out(session, worker)
