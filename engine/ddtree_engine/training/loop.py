"""The training loop that the target and the drafter share: schedule, log, checkpoint, resume."""

from __future__ import annotations

import logging
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddtree_engine.errors import EngineError
from ddtree_engine.training.batches import step_seed
from ddtree_engine.training.checkpoint import load_state, save_best, save_state
from ddtree_engine.training.optimizer import adamw, learning_rate

_LOG = logging.getLogger(__name__)

_CALIBRATION = (10, 30)
"""The speed of a run is measured between these two steps (before them: compilation)."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast to train.

    Attributes:
        steps: optimizer steps; None chooses them from the speed measured at the start, so that
            the run takes about ``seconds``. What is chosen is recorded and kept on resume.
        seconds: see ``steps``.
        time_limit: stop cleanly, with a checkpoint, this long after the start of the process's run.
        peak: highest learning rate.
        warmup: steps of linear warm-up.
        decay_share: part of the steps in which the rate falls.
        weight_decay: of the matrices.
        evaluate_every: steps between evaluations on held-out data; the last step always is one.
        seed: of everything random.
    """

    steps: int | None = None
    seconds: float = 300.0
    time_limit: float | None = None
    peak: float = 2e-3
    warmup: int = 100
    decay_share: float = 0.4
    weight_decay: float = 0.1
    evaluate_every: int = 250
    seed: int = 0


def train(
    model: nn.Module,
    objective: Callable[[int], Tensor],
    evaluate: Callable[[bool], Mapping[str, float]],
    schedule: Schedule,
    folder: Path,
    *,
    tokens_per_step: int,
    about: Mapping[str, Any],
    resume: bool,
) -> dict[str, Any]:
    """Trains ``model`` in place and returns the recorded facts of the run.

    Args:
        model: fp32 parameters; those with ``requires_grad`` are trained.
        objective: the loss of a step (a scalar with its graph).
        evaluate: held-out measures, told whether it is the last time; ``loss`` among them decides
            which parameters are the best.
        schedule: see :class:`Schedule`.
        folder: receives the state, and the best parameters in bf16.
        tokens_per_step: for the log.
        about: recorded with the state: configuration, data.
        resume: continue from the state in ``folder``; a finished run is left as it is.

    Returns:
        The facts: ``step``, ``total``, ``finished``, ``best``, ``history``, ``seconds`` and more.

    Raises:
        EngineError: a state that can't be read, or a loss that is not finite.
    """
    started = time.monotonic()
    optimizer = adamw(model, schedule.weight_decay)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    facts: dict[str, Any] = {
        **about,
        "schedule": asdict(schedule),
        "step": 0,
        "total": schedule.steps,
        "tokens_per_step": tokens_per_step,
        "best": None,
        "history": [],
        "seconds": 0.0,
        "hardware": _hardware(next(iter(trained.values())).device),
        "command": " ".join(sys.orig_argv[1:]),
        "runs": 0,
    }
    if resume:
        saved, tensors = load_state(folder)
        if saved["finished"]:
            return saved
        facts |= {k: saved[k] for k in ("step", "total", "best", "history", "seconds", "runs")}
        _restore(trained, optimizer, tensors)
        _LOG.info("resuming at step %d of %s", facts["step"], facts["total"])
    facts["runs"] += 1
    before = facts["seconds"]
    losses: list[Tensor] = []
    mark = (started, facts["step"])
    out_of_time = False
    while not out_of_time and (facts["total"] is None or facts["step"] < facts["total"]):
        step = facts["step"]
        rate = learning_rate(
            step,
            facts["total"],
            peak=schedule.peak,
            warmup=schedule.warmup,
            decay_share=schedule.decay_share,
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        torch.manual_seed(step_seed(schedule.seed, step))
        loss = objective(step)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        step = facts["step"] = step + 1

        if facts["total"] is None and step in _CALIBRATION:
            mark = _calibrate(facts, schedule, mark, started)
        last = step == facts["total"]
        if step % schedule.evaluate_every == 0 or last:
            train_loss = torch.stack(losses).mean().item()
            losses.clear()
            facts["seconds"] = before + time.monotonic() - started
            _record(facts, train_loss, rate, evaluate(last), model, folder)
        limit = schedule.time_limit
        out_of_time = limit is not None and time.monotonic() - started > limit
    facts["seconds"] = before + time.monotonic() - started
    facts["finished"] = facts["step"] == facts["total"]
    save_state(folder, facts, _collect(trained, optimizer))
    return facts


def _calibrate(
    facts: dict[str, Any], schedule: Schedule, mark: tuple[float, int], started: float
) -> tuple[float, int]:
    """At the first mark starts the clock, at the second chooses the total number of steps."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    now = time.monotonic()
    if facts["step"] == _CALIBRATION[0]:
        return now, facts["step"]
    pace = (now - mark[0]) / (facts["step"] - mark[1])
    left = max(0.0, schedule.seconds - (now - started))
    # 4% for evaluations and checkpoints.
    facts["total"] = facts["step"] + max(1, int(0.96 * left / pace))
    _LOG.info("%.1f ms a step: %d steps in all", pace * 1e3, facts["total"])
    return mark


def _record(
    facts: dict[str, Any],
    train_loss: float,
    rate: float,
    measured: Mapping[str, float],
    model: nn.Module,
    folder: Path,
) -> None:
    step = facts["step"]
    if not torch.isfinite(torch.tensor(train_loss)):
        raise EngineError(
            f"the training loss is {train_loss} at step {step}",
            hint="lower the learning rate; the last checkpoint is intact",
        )
    entry = {"step": step, "train_loss": train_loss, "learning_rate": rate, **measured}
    entry["seconds"] = facts["seconds"]
    facts["history"].append(entry)
    values = " ".join(f"{k}={v:.4g}" for k, v in entry.items() if k != "step")
    _LOG.info("step %d/%s %s", step, facts["total"], values)
    if facts["best"] is None or measured["loss"] < facts["best"]["loss"]:
        facts["best"] = {"step": step, **measured}
        save_best(folder, dict(model.named_parameters()))


def _collect(
    trained: Mapping[str, nn.Parameter], optimizer: torch.optim.AdamW
) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, parameter in trained.items():
        tensors[f"parameter/{name}"] = parameter
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key}/{name}"] = value
    return tensors


def _restore(
    trained: Mapping[str, nn.Parameter],
    optimizer: torch.optim.AdamW,
    tensors: Mapping[str, Tensor],
) -> None:
    keys = sorted({name.partition("/")[0] for name in tensors} - {"parameter"})
    wanted = {f"{key}/{name}" for key in ("parameter", *keys) for name in trained}
    if wanted != set(tensors):
        raise EngineError(
            "the training state is of another model",
            hint="start again without --resume, or with the options of the interrupted run",
        )
    for name, parameter in trained.items():
        with torch.no_grad():
            parameter.copy_(tensors[f"parameter/{name}"])
        # The step counter stays where the optimizer makes it: on the CPU unless fused.
        optimizer.state[parameter] = {
            key: tensors[f"{key}/{name}"].to(
                "cpu" if key == "step" and not parameter.is_cuda else parameter.device
            )
            for key in keys
        }


def _hardware(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "torch": torch.__version__, "python": platform.python_version()}
