"""One engine behind one server: its decode thread from loading to the end, and what it is."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from time import perf_counter

import torch

from ddtree_engine import __version__
from ddtree_engine.budget_tuner import CANDIDATES, BudgetTuner
from ddtree_engine.config_file import read_target_config
from ddtree_engine.decoder import Decoder
from ddtree_engine.engine import (
    Engine,
    choose_device,
    choose_device_rounds,
    choose_dtype,
    load_engine,
    model_folder,
)
from ddtree_engine.errors import CheckpointError, EngineError, RequestError
from ddtree_engine.inspection import plan_deployment
from ddtree_engine.metrics import Metrics
from ddtree_engine.notify import Notifier
from ddtree_engine.round_costs import measure_costs
from ddtree_engine.scheduler import Scheduler, State, UnavailableError
from ddtree_engine.sequence import Mode, Speculation
from ddtree_engine.server.protocol import DDTree
from ddtree_engine.server.settings import Settings
from ddtree_engine.warm_up import check_device_rounds, warm_up

DEFAULT_CONTEXT = 8192
"""Context where --max-context is not given and the model was made for more: caches are reserved."""

STUCK_SECONDS = 30.0
"""Age of the last heartbeat from which the decode loop counts as stuck."""

log = logging.getLogger(__name__)


class Phase(StrEnum):
    """What `/ready` says."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Service:
    """Loads, warms up and decodes in one thread; the HTTP side asks it what it needs.

    Attributes:
        engine, scheduler: None until they are there.
        failure: what ended the decode thread, if it did not end as asked.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.engine: Engine | None = None
        self.scheduler: Scheduler | None = None
        self.failure: BaseException | None = None
        self.started_at = datetime.now(UTC)
        self.notifier = Notifier()
        self._ended: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def start(self, on_end: Callable[[], None] = lambda: None) -> None:
        """Start the decode thread; `on_end` is called by it when it ends, for whatever reason."""
        self._ended = on_end
        self._thread.start()

    @property
    def phase(self) -> Phase:
        """Whether requests are taken, and why not."""
        if self.failure is not None:
            return Phase.FAILED
        if self.scheduler is None:
            return Phase.STARTING
        return Phase.READY if self.scheduler.state is State.RUNNING else Phase.DRAINING

    def require(self) -> tuple[Engine, Scheduler]:
        """Return engine and scheduler.

        Raises:
            UnavailableError: they are not ready.
        """
        if self.engine is None or self.scheduler is None:
            raise UnavailableError("the server is starting", hint="wait until /ready answers 200")
        return self.engine, self.scheduler

    def heartbeat(self) -> tuple[bool, float | None]:
        """Whether the decode loop is alive, and the age of its last sign of life in seconds."""
        if self.scheduler is None:
            return False, None
        age = self.scheduler.heartbeat_age()
        alive = self._thread.is_alive() and self.failure is None
        return alive and age < STUCK_SECONDS, age

    def speculation(self, asked: DDTree | None) -> Speculation:
        """Return how a request speculates: as it asks, else as the server does.

        Raises:
            RequestError: more than the server was started for.
        """
        ours = self.settings
        asked = asked or DDTree()
        budget, topk = asked.budget or ours.most_nodes, asked.topk or ours.topk
        if budget > ours.most_nodes:
            raise RequestError(
                f"budget {budget} is over this server's {ours.most_nodes}",
                hint="start the server with a larger --budget",
            )
        if topk > ours.topk:
            raise RequestError(
                f"topk {topk} is over this server's {ours.topk}",
                hint="start the server with a larger --topk",
            )
        auto = ours.budget == "auto" and asked.budget is None
        return Speculation(Mode(asked.mode or ours.mode), budget, topk, auto)

    def stop(self, timeout: float) -> bool:
        """End the decode loop; return whether its thread ended in time."""
        if self.scheduler is not None:
            self.scheduler.stop()
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.notifier.status("loading the model")
            settings = self.settings
            _check_memory(settings)
            engine = load_engine(
                settings.model,
                settings.drafter,
                device=settings.device,
                dtype=settings.dtype,
                threads=settings.threads,
            )
            scheduler = self._prepare(engine)
            self.engine, self.scheduler = engine, scheduler
            status = self._announce(engine)
            self.notifier.ready(status)
            scheduler.run()
        except EngineError as error:
            self.failure = error
        except BaseException as error:
            log.exception("the decode thread failed: %s", error)
            self.failure = error
        finally:
            self._ended()

    def _prepare(self, engine: Engine) -> Scheduler:
        """Reserve the caches and warm up."""
        settings = self.settings
        decoder = Decoder(
            engine.target,
            engine.drafter,
            rows=settings.max_running,
            max_length=_context(engine.max_context, settings.max_context),
            recurrent_state=settings.recurrent_state,
            device_rounds=choose_device_rounds(settings.rounds, engine.device),
        )
        self.notifier.status("warming up")
        begin = perf_counter()
        most = settings.most_nodes
        decoder.rehearse(budget=most, topk=settings.topk)
        check_device_rounds(decoder, budget=most, topk=settings.topk)
        count = warm_up(decoder, budget=most, topk=settings.topk)
        log.info("warm-up: %d requests in %.1f s", count, perf_counter() - begin)
        if settings.budget == "auto" and engine.drafter is not None:
            costs = measure_costs(decoder, CANDIDATES, topk=settings.topk)
            decoder.tuner = BudgetTuner(costs)
            log.info("ms a round by budget: %s", costs)
        self.metrics.skip_stages(decoder.clock.seconds)
        return Scheduler(
            decoder,
            self.metrics,
            max_queue=settings.max_queue,
            on_beat=self.notifier.feed_watchdog,
        )

    def _announce(self, engine: Engine) -> str:
        """Say in the log and in the metrics what is ready; return it for the service manager."""
        ours = self.settings
        self.metrics.engine.labels(
            __version__,
            ours.mode,
            str(ours.budget),
            str(ours.topk),
            ours.recurrent_state,
            engine.backend,
            ours.served_model_name,
        ).set(1)
        config = engine.drafter.config if engine.drafter is not None else None
        block = config.block_size if config is not None else None
        mask = config.mask_token_id if config is not None else None
        if ours.recurrent_state == "leak":
            log.warning("--recurrent-state leak: tree mode is NOT exact; for experiments only")
        text = (
            f"ready: mode={ours.mode} budget={ours.budget} topk={ours.topk} block_size={block} "
            f"mask_token_id={mask} backend={engine.backend} port={ours.port}"
        )
        log.info("model: %s, pid %d", ours.served_model_name, os.getpid())
        log.info("%s", text)
        return text


def _check_memory(settings: Settings) -> None:
    """Refuse, before anything is loaded, what the GPU has no room for.

    Raises:
        CapacityError: with the numbers.
        CheckpointError: a folder is not usable.
    """
    device = choose_device(settings.device)
    if device.type != "cuda":
        return
    model = model_folder(settings.model, "target")
    plan = plan_deployment(
        model,
        None if settings.drafter is None else model_folder(settings.drafter, "drafter"),
        choose_dtype(settings.dtype, device),
        rows=settings.max_running,
        context=_context(read_target_config(model).max_position_embeddings, settings.max_context),
        budget=settings.most_nodes,
    )
    plan.check(*torch.cuda.mem_get_info(device))


def _context(made_for: int, asked: int | None) -> int:
    if asked is None:
        return min(made_for, DEFAULT_CONTEXT)
    if asked > made_for:
        raise CheckpointError(
            f"--max-context {asked} is more than the {made_for} positions of the model",
            hint=f"give at most {made_for}",
        )
    return asked
