"""What is checked of a service on backend `sglang`: its environment before, and its answers after.

None of it was run against SGLang itself; paths, fields and names are those of the published
packages of 0.5.16 and 0.5.23.
"""

import re
from collections.abc import Mapping

from ddtreectl.apply.session import Session
from ddtreectl.errors import RefusedError, StepError
from ddtreectl.facts.http import Answer, Request
from ddtreectl.facts.output import as_float, as_int, json_object
from ddtreectl.hosts.protocol import Result
from ddtreectl.inventory.service import Mode, ServiceSpec
from ddtreectl.units.sglang import ALGORITHMS, traps

DEADLINE = 300.0
"""Seconds for the check of an environment: an import of SGLang takes up to half a minute."""

NO_PLUGIN = (
    "mode `linear` needs no plugin; shadow and tree need one that registers {algorithm} (entry "
    "point `sglang.srt.plugins`) in the environment; `backend: engine` has all modes"
)

_SHOWS = re.compile(
    r"Initialized \S+ draft runner|draft runner ready|fused KV materialization"
    r"|max_running_requests was reduced"
)

# Says what the environment is, in the words of one JSON object. A plugin that fails to load is only
# logged by SGLang, and the server then does not know its algorithm: so it is asked here.
_PROGRAM = """
import importlib.metadata, json, sys
algorithm, *folders = sys.argv[1:]
found = {"version": None, "known": False, "why": "", "unreadable": []}
for folder in folders:
    try:
        with open(folder + "/config.json") as file:
            json.load(file)
    except (OSError, ValueError) as error:
        found["unreadable"].append(str(error))
try:
    found["version"] = importlib.metadata.version("sglang")
    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    load_plugins()
    SpeculativeAlgorithm.from_string(algorithm)
    found["known"] = True
except Exception as error:
    found["why"] = "%s: %s" % (type(error).__name__, error)
print(json.dumps(found))
"""


def inspection(python: str, service: ServiceSpec) -> list[str]:
    """The command that looks at an environment from within."""
    return [python, "-c", _PROGRAM, ALGORITHMS[service.mode], service.model, service.drafter]


def judge(
    session: Session, service: ServiceSpec, result: Result, capabilities: list[tuple[int, int]]
) -> None:
    """Make sure that the environment can serve what is asked.

    Raises:
        RefusedError: a mode or an argument is one that it cannot serve.
        StepError: the environment or the models are damaged.
    """
    lines = result.stdout.strip().splitlines()
    found = json_object(lines[-1]) if lines else {}
    version = found.get("version")
    if not isinstance(version, str):
        raise StepError(
            f"SGLang cannot be asked on `{session.host.name}`",
            cause=result.said[-2000:],
            hint=f"`ddtreectl doctor {session.host.name}` looks at the environment",
        )
    unreadable = found.get("unreadable")
    if isinstance(unreadable, list) and unreadable:
        raise StepError(
            f"model `{service.model}` with drafter `{service.drafter}` cannot be served",
            cause="\n".join(str(entry) for entry in unreadable),
        )
    algorithm, why = ALGORITHMS[service.mode], str(found.get("why") or "")
    if found.get("known") is not True:
        raise RefusedError(
            f"SGLang {version} on `{session.host.name}` does not know the algorithm `{algorithm}`, "
            f"which mode `{service.mode}` is",
            cause=why,
            hint=NO_PLUGIN.format(algorithm=algorithm)
            if service.mode is not Mode.LINEAR
            else "0.5.16 and newer have it: provision another version",
        )
    if objections := traps(service, version, service.sglang.extra_args, capabilities):
        raise RefusedError(
            f"this would start and not serve: {objections[0]}", cause="\n".join(objections[1:])
        )


def disagreement(service: ServiceSpec, info: Mapping[str, object]) -> str:
    """What `/server_info` says otherwise than what was deployed; empty where all is as asked."""
    wanted: dict[str, object] = {
        "speculative_algorithm": ALGORITHMS[service.mode],
        "model_path": service.model,
        "speculative_draft_model_path": service.drafter,
        "tp_size": service.gpu_count,
    }
    for key, value in wanted.items():
        if info.get(key) != value:
            return f"the service says {key} `{info.get(key)}`, and `{value}` was deployed"
    return ""


def mode_lines(journal: str) -> list[str]:
    """The lines of a journal that show which way of drafting the server has set up, once each."""
    return list(dict.fromkeys(line.strip() for line in journal.splitlines() if _SHOWS.search(line)))


def fewer_requests(service: ServiceSpec, info: Mapping[str, object]) -> str:
    """That the service takes fewer requests than asked; empty where it does not."""
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states else None
    told = state.get("effective_max_running_requests_per_dp") if isinstance(state, dict) else None
    takes = as_int(told)
    if takes is None or takes >= service.max_running:
        return ""
    return (
        f"it takes {takes} requests at a time and {service.max_running} were asked: its memory "
        "holds no more (a smaller block, or a smaller `max_running`, says so beforehand)"
    )


def generations(base: str, prompt: str, tokens: int, timeout: float) -> list[Request]:
    """Requests that make it generate, greedily and sampled: each has kernels of its own."""
    return [
        Request(
            f"{base}/generate",
            timeout,
            {
                "text": prompt,
                "sampling_params": {"max_new_tokens": tokens, "temperature": temperature},
            },
        )
        for temperature in (0, 0.7)
    ]


def degenerate(answer: Answer) -> str:
    """What is wrong with generated text; empty where nothing is seen to be."""
    text = answer.content.get("text")
    if not isinstance(text, str) or not text.strip():
        return "the service generates no text"
    if len(set(text.strip())) < 3:
        return "the service repeats one character"
    return ""


def acceptance(answer: Answer) -> float | None:
    """Tokens a verify of one request, as the service tells; None where it does not."""
    meta = answer.content.get("meta_info")
    return as_float(meta.get("spec_accept_length")) if isinstance(meta, dict) else None
