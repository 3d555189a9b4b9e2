"""Three stages of health: the unit, its HTTP interface, its model.

A service manager that says `active` proves little: the process may die a second later, an older
process may own the port, the server may run with other settings, or it may generate nonsense.
"""

import time
from dataclasses import dataclass

from ddtreectl.apply import sglang
from ddtreectl.apply.exchange import pauses, poll
from ddtreectl.apply.session import Session
from ddtreectl.errors import StepError
from ddtreectl.facts import told
from ddtreectl.facts.host import HostFacts
from ddtreectl.facts.http import Answer, Request, base_url
from ddtreectl.facts.systemd import Unit
from ddtreectl.inventory.service import Mode, ServiceSpec
from ddtreectl.plan.step import Candidate

SMOKE_PROMPT = "# Write a Python function fibonacci(n) using iteration\ndef fibonacci(n):\n"
SMOKE_TOKENS = 32
SMOKE_TIMEOUT = 120.0
JOURNAL_LINES = 2000
LOST = (
    "the service ended while it was being checked",
    "a service that ends within seconds of its start says why in its journal",
)

Run = tuple[int, int, str | None]
"""One run of a unit: main pid, its start in clock ticks, and systemd's invocation id."""


@dataclass
class Check:
    """The health check of one candidate.

    Attributes:
        session: the operator at work.
        candidate: what was started.
        before: runs that were there before the start, which the new one must not be.
        job: process id of the start job, where it runs apart.
        run: the run that is being checked, once it is known.
        answer: the last HTTP answer, for evidence.
        given_up: whether the last look found the start job gone and no run.
    """

    session: Session
    candidate: Candidate
    before: frozenset[Run]
    job: int | None
    run: Run | None = None
    answer: Answer | None = None
    model_name: str = ""
    given_up: bool = False

    @property
    def service(self) -> ServiceSpec:
        """What the candidate must serve."""
        return self.candidate.service

    def unit(self) -> None:
        """Stage 1: the unit has a new run, and it and nobody else owns the port."""
        poll(
            self.session,
            self.service.start_timeout,
            f"unit `{self.candidate.unit}` does not listen on port {self.service.port}",
            self._unit_missing,
        )

    def http(self) -> None:
        """Stage 2: the service is ready, and says that it runs what was deployed."""
        base = base_url(self.service.address, self.service.port)
        began, pause = time.monotonic(), pauses(self.session.interrupts)
        while True:
            paths = ("/ready", "/health")
            ready, health = self._ask([Request(f"{base}{path}", 5.0) for path in paths], 15.0)
            self.answer = health if ready.status == told.NOT_FOUND else ready
            self._still_runs(self.session.look())
            if told.is_ready(ready, health):
                break
            if time.monotonic() - began > self.service.start_timeout:
                raise StepError(
                    f"the service is not ready within {self.service.start_timeout} s",
                    cause=str(self.answer),
                )
            self.session.report.detail(str(self.answer)[:120])
            next(pause)
        self.answer = self._ask(
            [Request(f"{base}/server_info", 10.0, key_file=self.service.api_key)], 20.0
        )[0]
        if not self.answer.ok:
            self._still_runs(self.session.look())
            raise StepError("the service does not say what it runs", cause=str(self.answer))
        info = self.answer.content
        if self.service.backend == "sglang":
            self._sglang_is_as_deployed(info)
            return
        wanted: dict[str, object] = {"mode": self.service.mode.value}
        if self.service.mode is Mode.TREE:
            wanted |= {"budget": self.service.budget, "topk": self.service.topk}
        for key, value in wanted.items():
            if info.get(key) != value:
                raise StepError(
                    f"the service says {key} `{info.get(key)}`, and `{value}` was deployed",
                    cause=str(self.answer),
                )
        model = info.get("model")
        self.model_name = str(model.get("name")) if isinstance(model, dict) else ""
        facts = self.session.look()
        self._still_runs(facts)
        if info.get("pid") not in facts.unit_pids(facts.unit(self.candidate.unit)):
            raise StepError(
                f"the answer on port {self.service.port} comes from pid {info.get('pid')}, "
                f"which is no process of `{self.candidate.unit}`"
            )

    def _sglang_is_as_deployed(self, info: dict[str, object]) -> None:
        if wrong := sglang.disagreement(self.service, info):
            raise StepError(wrong, cause=str(self.answer))
        for line in sglang.mode_lines(self._journal()):
            self.session.report.say(f"  log: {line}")
        if fewer := sglang.fewer_requests(self.service, info):
            self.session.report.say(f"  ! {fewer}")
        self._still_runs(self.session.look())

    def _journal(self) -> str:
        supervisor, invocation = self.session.supervisor, self.run[2] if self.run else None
        argv = supervisor.journal_since(self.candidate.unit, "0", invocation, JOURNAL_LINES)
        return self.session.host.run(argv, deadline=30.0).stdout

    def _sglang_generates(self) -> None:
        """SGLang decodes no single request without drafting to compare with: it must make text."""
        base = base_url(self.service.address, self.service.port)
        asked = sglang.generations(base, SMOKE_PROMPT, SMOKE_TOKENS, SMOKE_TIMEOUT)
        for answer in self._ask(asked, 2 * SMOKE_TIMEOUT + 10.0):
            self.answer = answer
            if not answer.ok:
                self._still_runs(self.session.look())
                raise StepError("the service does not generate", cause=str(answer))
            if wrong := sglang.degenerate(answer):
                raise StepError(wrong, cause=str(answer))
        length = sglang.acceptance(answer)
        if length is not None and length <= 1.0:
            self.session.report.say("  ! no drafted token was accepted: does the drafter fit?")
        self._still_runs(self.session.look())

    def model(self) -> None:
        """Stage 3: at temperature 0 the text equals the one that the model makes undrafted."""
        if self.service.backend == "sglang":
            self._sglang_generates()
            return
        url = f"{base_url(self.service.address, self.service.port)}/v1/completions"
        body: dict[str, object] = {
            "model": self.model_name,
            "prompt": SMOKE_PROMPT,
            "max_tokens": SMOKE_TOKENS,
            "temperature": 0,
            "seed": 0,
        }
        plain = {**body, "ddtree": {"mode": "ar"}}
        key = self.service.api_key
        requests = [Request(url, SMOKE_TIMEOUT, sent, key_file=key) for sent in (body, plain)]
        texts = []
        for answer in self._ask(requests, 2 * SMOKE_TIMEOUT + 10.0):
            self.answer = answer
            if not answer.ok:
                self._still_runs(self.session.look())
                raise StepError("the service does not generate", cause=str(answer))
            texts.append(_text(answer))
        if not texts[0]:
            raise StepError("the service generates no text", cause=str(self.answer))
        if texts[0] != texts[1]:
            raise StepError(
                f"mode `{self.service.mode}` changes the text of the model",
                cause=f"{self.service.mode}: {texts[0][:200]!r}\nar: {texts[1][:200]!r}",
                hint="drafting must be lossless; compare the modes with `ddtree-engine check`",
            )
        self._still_runs(self.session.look())

    def _ask(self, requests: list[Request], deadline: float) -> list[Answer]:
        return self.session.ask(requests, deadline)

    def _unit_missing(self, facts: HostFacts) -> str | None:
        unit = facts.unit(self.candidate.unit)
        self._fail_if_ended(facts, unit)
        run = run_of(facts, unit)
        if run is None:
            return f"unit is {unit}"
        if run in self.before:
            return "the unit still has its old process"
        if self.run is not None and run != self.run:
            raise StepError(LOST[0], cause=f"it runs as pid {run[0]} now", hint=LOST[1])
        self.run = run
        pids = facts.unit_pids(unit)
        foreign = [pid for pid in facts.listener_pids(self.service.port) if pid not in pids]
        if foreign:
            process = facts.processes.get(foreign[0]) or f"pid {foreign[0]}"
            raise StepError(
                f"port {self.service.port} is taken by {process}",
                hint="that process is not ours to stop; free the port and try again",
            )
        if not facts.port_taken(self.service.port):
            return f"unit is {unit}, nothing listens on port {self.service.port} yet"
        return None

    def _fail_if_ended(self, facts: HostFacts, unit: Unit) -> None:
        """Fail as soon as the unit has ended; systemd may be about to start it again."""
        waiting = self.job is not None and self.job in facts.processes
        ended = unit.active == "failed" or unit.sub == "auto-restart" or bool(unit.restarts)
        # A look is no instant: the job may have brought the unit up and gone between the two.
        given_up = unit.active == "inactive" and self.job is not None and not waiting
        self.given_up, given_up = given_up, given_up and self.given_up
        if ended or given_up:
            raise StepError(
                f"unit `{self.candidate.unit}` ended: {unit}",
                hint=LOST[1],
            )

    def _still_runs(self, facts: HostFacts) -> None:
        unit = facts.unit(self.candidate.unit)
        self._fail_if_ended(facts, unit)
        run = run_of(facts, unit)
        if run != self.run:
            raise StepError(LOST[0], cause=f"unit is {unit}", hint=LOST[1])


def run_of(facts: HostFacts, unit: Unit) -> Run | None:
    """The run of a unit, or None while it has no process."""
    if unit.main_pid is None or unit.main_pid not in facts.processes:
        return None
    return (unit.main_pid, facts.processes[unit.main_pid].ticks, unit.invocation)


def _text(answer: Answer) -> str:
    choices = answer.content.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return str(choices[0].get("text") or "")
    return ""
