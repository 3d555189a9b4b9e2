"""A server on a GPU: ready after its rehearsal, exact in all modes at once."""

from __future__ import annotations

import pytest

from tests.engine.serving.server_process import ServerProcess

PROMPT = "def parse(self, text, start=0):\n    if not text:\n        return None\n"


@pytest.mark.e2e
@pytest.mark.parametrize(("rounds", "led_by"), [("auto", "device"), ("host", "host")])
def test_requests_of_all_modes_at_once(rounds: str, led_by: str) -> None:
    options = ["--device", "cuda", "--dtype", "float32", "--rounds", rounds, "--budget", "32"]
    with ServerProcess(*options, "--max-context", "600") as server:
        server.wait_until_ready()
        assert server.get("/server_info").json()["rounds"] == led_by
        bodies = [
            {
                "prompt": PROMPT * repeat,
                "max_tokens": 60,
                "temperature": temperature,
                "seed": 5,
                "ddtree": {"mode": mode},
            }
            for repeat in (1, 3)
            for temperature in (0, 0.8)
            for mode in ("ar", "linear", "shadow", "tree")
        ]
        sent = [server.start(body) for body in bodies]
        for thread, _ in sent:
            thread.join()
        texts = [found[0].json()["choices"][0]["text"] for _, found in sent]
        same = [texts[i : i + 4] for i in range(0, len(texts), 4)]
        # Rounding explains a token now and then, and never in most of them.
        assert sum(len(set(group)) == 1 for group in same) >= 3, same
        assert server.gauge("ddtree_running") == 0
