"""The real router before the real engine with the bundled model: what each expects of the other."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from ddtreectl.facts.http import Answer
from ddtreectl.facts.router import parse_workers
from ddtreectl.inventory.router import RouterSettings
from ddtreectl.units import router as router_unit
from tests.ctl.machine import free_port
from tests.fleet.lab.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

MODEL = "ddtree-demo"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def url(router_wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A router with the very arguments of its unit, and one engine."""
    folder = tmp_path_factory.mktemp("contract")
    uv = [str(BIN / "uv"), "--quiet", "--offline"]
    subprocess.run([*uv, "venv", "--python", sys.executable, folder / "venv"], check=True)
    pip = [*uv, "pip", "install", "--python", str(folder / "venv/bin/python"), "--no-index"]
    subprocess.run([*pip, "--find-links", str(router_wheelhouse), "smg"], check=True)
    engine, port, metrics = free_port(), free_port(), free_port()
    listed = {"id": "h1/gpu0", "url": f"http://127.0.0.1:{engine}"}
    (folder / "workers.json").write_text(json.dumps({"version": 1, "workers": [listed]}))
    settings = RouterSettings(host="h1", address="127.0.0.1", port=port, metrics_port=metrics)
    serve = [str(BIN / "ddtree-engine"), "serve", "--mode", "linear", "--device", "cpu"]
    commands = [
        [*serve, "--port", str(engine)],
        router_unit.argv(f"{folder}/venv/bin/smg", f"{folder}/workers.json", settings),
    ]
    found = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        for command in commands:
            log = stack.enter_context(tempfile.TemporaryFile())
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            stack.callback(process.wait)
            stack.callback(process.kill)
        until(lambda: "ready" in statuses(found), "the router has the engine", deadline=150)
        yield found


def statuses(url: str) -> list[str]:
    try:
        answer = httpx.get(f"{url}/workers")
    except httpx.HTTPError:
        return []
    workers = parse_workers(Answer(f"{url}/workers", answer.status_code, answer.text))
    assert workers is not None
    return [worker.status for worker in workers if worker.name == "h1/gpu0"]


def test_clients_reach_the_engine_through_the_router(url: str) -> None:
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        chat = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "def f(x):"}],
            max_tokens=8,
            temperature=0,
        )
        whole = client.completions.create(
            model=MODEL, prompt="def f(x):", max_tokens=8, temperature=0
        )
        pieces = client.completions.create(
            model=MODEL, prompt="def f(x):", max_tokens=8, temperature=0, stream=True
        )
        streamed = "".join(piece.choices[0].text for piece in pieces if piece.choices)
    assert chat.choices[0].message.content
    assert whole.choices[0].text == streamed != ""


def test_the_fields_of_the_engine_pass(url: str) -> None:
    body = {"model": MODEL, "prompt": "def f(x):", "max_tokens": 4, "ddtree": {"mode": "ar"}}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.json()["ddtree"]["mode"] == "ar"
    assert answer.headers["x-smg-routed-worker-id"].startswith("http://127.0.0.1:")
