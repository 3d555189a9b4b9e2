"""The HTTP API of a real server process, asked by plain HTTP and by OpenAI's client."""

from __future__ import annotations

import json
import select
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ddtree_engine.server.middleware import MAX_BODY_BYTES
from tests.engine.serving.checkpoint import POISON
from tests.engine.serving.server_process import DEADLINE, ServerProcess, wait_for

pytestmark = pytest.mark.e2e

MODES = ("ar", "linear", "shadow", "tree")
PROMPT = "def fibonacci(n):\n"
# Runs until somebody stops it: with this model it would take minutes.
ENDLESS = {"prompt": PROMPT, "max_tokens": 5_900, "temperature": 0, "ignore_eos": True}
BAD_REQUESTS = json.loads((Path(__file__).parent / "data/bad_requests.json").read_text())


@pytest.fixture
def client(server: ServerProcess) -> Any:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


def events(response: httpx.Response) -> list[Any]:
    """Data of a stream of server-sent events."""
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_text_does_not_depend_on_the_mode(server: ServerProcess, temperature: float) -> None:
    answers = [
        server.complete(
            PROMPT, max_tokens=80, temperature=temperature, seed=3, ddtree={"mode": mode}
        )
        for mode in MODES
    ]
    budgets = [
        server.complete(
            PROMPT,
            max_tokens=80,
            temperature=temperature,
            seed=3,
            ddtree={"mode": "tree", "budget": budget, "topk": 3},
        )
        for budget in (1, 7)
    ]
    texts = [text_of(answer) for answer in answers + budgets]
    assert texts == [texts[0]] * 6
    assert [answer["usage"] for answer in answers] == [answers[0]["usage"]] * 4
    extensions = {mode: answer["ddtree"] for mode, answer in zip(MODES, answers, strict=True)}
    tokens = answers[0]["usage"]["completion_tokens"]
    assert extensions["ar"]["rounds"] == tokens
    for mode, extension in extensions.items():
        assert extension["mode"] == mode
        assert extension["acceptance_length"] == tokens / extension["rounds"]
        assert extension["decode_seconds"] > 0
    assert [extensions[mode]["budget"] for mode in MODES] == [0, 5, 5, 24]
    evidence = extensions["shadow"]["shadow"]
    assert evidence["rounds"] + evidence["censored"] == extensions["shadow"]["rounds"]
    assert extensions["tree"]["shadow"] is None


def test_a_stream_joins_to_the_whole_text(server: ServerProcess) -> None:
    body = {
        "prompt": PROMPT,
        "max_tokens": 60,
        "temperature": 0.8,
        "seed": 1,
        "ignore_eos": True,
    }
    whole = server.post("/v1/completions", body).json()
    response = server.post("/v1/completions", {**body, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, last, done = events(response)
    assert done == "[DONE]"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert len(chunks) > 10
    assert "".join(text_of(chunk) for chunk in [*chunks, last]) == text_of(whole)
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert last["ddtree"]["rounds"] == whole["ddtree"]["rounds"]
    assert all("ddtree" not in chunk and "usage" not in chunk for chunk in chunks)


def test_usage_of_a_stream(server: ServerProcess) -> None:
    body = {"prompt": PROMPT, "max_tokens": 5, "stream": True, "temperature": 0}
    response = server.post("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    *chunks, last, _ = events(response)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert last["usage"]["total_tokens"] == 5 + last["usage"]["prompt_tokens"]
    assert last["ddtree"]["mode"] == "tree"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(server: ServerProcess, stream: bool) -> None:
    whole = text_of(server.complete(PROMPT, max_tokens=80, temperature=0.8, seed=2))
    stop = whole[30:34]
    used = set()
    for mode in MODES:
        body = {
            "prompt": PROMPT,
            "max_tokens": 80,
            "temperature": 0.8,
            "seed": 2,
            "stop": [stop, "never there"],
            "ddtree": {"mode": mode},
            "stream": stream,
        }
        response = server.post("/v1/completions", body)
        if stream:
            *chunks, last, _ = events(response)
            text = "".join(text_of(chunk) for chunk in [*chunks, last])
        else:
            last = response.json()
            text = text_of(last)
        assert text == whole[: whole.index(stop)]
        assert last["choices"][0]["finish_reason"] == "stop"
        used.add(round(last["ddtree"]["acceptance_length"] * last["ddtree"]["rounds"]))
    assert len(used) == 1
    single = server.complete(PROMPT, max_tokens=80, temperature=0.8, seed=2, stop=stop)
    assert text_of(single) == whole[: whole.index(stop)]


def test_a_seed_that_is_not_given_is_drawn_and_reported(server: ServerProcess) -> None:
    fields = {"max_tokens": 40, "top_k": 5}
    first, second = (server.complete(PROMPT, **fields) for _ in range(2))
    assert first["ddtree"]["seed"] != second["ddtree"]["seed"]
    again = server.complete(PROMPT, **fields, seed=first["ddtree"]["seed"])
    assert text_of(again) == text_of(first)


def test_prompts_as_text_and_as_tokens(server: ServerProcess) -> None:
    fields = {"max_tokens": 10, "temperature": 0}
    text = server.complete("aaa", **fields)
    assert text_of(server.complete(["aaa"], **fields)) == text_of(text)
    tokens = server.complete([7] * 3, **fields)
    assert tokens["usage"]["prompt_tokens"] == 3
    assert text_of(server.complete([[7] * 3], **fields)) == text_of(tokens)


def test_without_max_tokens_a_text_ends_by_itself_or_with_the_context(
    server: ServerProcess,
) -> None:
    free = server.complete(PROMPT, temperature=1.0, seed=4)
    assert free["choices"][0]["finish_reason"] == "stop"
    full = server.complete([7] * 5_990, temperature=0, ignore_eos=True)
    assert full["choices"][0]["finish_reason"] == "length"
    assert full["usage"]["total_tokens"] == 6_000
    refused = server.post("/v1/completions", {"prompt": [7] * 6_000})
    assert refused.status_code == 400
    assert "6000 prompt tokens" in refused.json()["error"]["message"]


@pytest.mark.parametrize("case", BAD_REQUESTS, ids=[case["name"] for case in BAD_REQUESTS])
def test_bad_requests(server: ServerProcess, case: dict[str, Any]) -> None:
    path = "/v1/chat/completions" if case.get("chat") else "/v1/completions"
    content = case["raw"] if "raw" in case else json.dumps(case["body"])
    headers = {"content-type": "application/json"}
    answer = server.post(path, None, content=content, headers=headers)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert case["says"] in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == case.get("param", error["param"])


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"prompt": "\xff"}', b'{"prompt": "a", "seed": ' + b"9" * 9000 + b"}"],
    ids=["nested", "not UTF-8", "many digits"],
)
def test_bodies_that_no_parser_takes(server: ServerProcess, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = server.post("/v1/completions", None, content=content, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "the body is not JSON that can be read"
    assert answer.json()["error"]["code"] == "invalid_value"


POST_JSON = b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"


def test_a_body_over_the_limit_is_not_read_to_its_end(server: ServerProcess) -> None:
    most = 100 * MAX_BODY_BYTES
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(POST_JSON + b"transfer-encoding: chunked\r\n\r\n")
        sent = 0
        with suppress(ConnectionError):  # the server hangs up
            while sent < most and not select.select([connection], [], [], 0)[0]:
                sent += connection.send(chunk[sent % len(chunk) :])
        assert sent < 2 * MAX_BODY_BYTES + (32 << 20)  # what kernels buffer on the way
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        head = b"content-length: %d\r\nexpect: 100-continue\r\n\r\n" % (MAX_BODY_BYTES + 1)
        connection.sendall(POST_JSON + head)
        with connection.makefile("rb") as answer:  # to its end, as the server closes
            assert answer.read().startswith(b"HTTP/1.1 413 "), "it is refused before it is sent"
    assert server.get("/health").status_code == 200
    counted = 'ddtree_http_requests_total{path="/v1/completions",status="413"} 2.0'
    assert counted in server.get("/metrics").text
    fits = json.dumps({"prompt": "a", "max_tokens": 1}) + " " * (MAX_BODY_BYTES // 2)
    headers = {"content-type": "application/json"}
    answer = server.post("/v1/completions", None, content=fits, headers=headers)
    assert answer.status_code == 200


def test_a_client_that_wants_websockets_is_served_without(server: ServerProcess) -> None:
    headers = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "a"}
    assert server.get("/ready", headers=headers).status_code == 200
    assert "pgrade" not in server.log
    assert "pip install" not in server.log


def test_a_text_beyond_any_context_is_not_encoded(server: ServerProcess) -> None:
    answer = server.post("/v1/completions", {"prompt": "ab" * (MAX_BODY_BYTES // 4)})
    assert answer.status_code == 400
    says = f"a prompt of {MAX_BODY_BYTES // 2} characters leaves no room in the context of 6000"
    assert says in answer.json()["error"]["message"]


def test_what_changes_nothing_is_ignored(server: ServerProcess) -> None:
    harmless = {
        "user": "me",
        "metadata": {"a": "b"},
        "n": 1,
        "logprobs": None,
        "echo": False,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "suffix": None,
        "stop": None,
        "stream": None,
        "top_k": -1,
    }
    fields = {"max_tokens": 8, "temperature": 0}
    plain = server.complete(PROMPT, **fields)
    assert text_of(server.complete(PROMPT, **fields, **harmless)) == text_of(plain)


def test_a_top_k_above_any_vocabulary_keeps_all_tokens(server: ServerProcess) -> None:
    fields = {"max_tokens": 8, "temperature": 0.8, "seed": 5}
    free = server.complete(PROMPT, **fields)
    assert text_of(server.complete(PROMPT, **fields, top_k=10**30)) == text_of(free)


def test_other_paths_methods_and_models(server: ServerProcess) -> None:
    assert server.get("/v1/nothing").json()["error"]["code"] == "not_found"
    assert server.get("/v1/completions").status_code == 405
    answer = server.post("/v1/completions", {"prompt": "a", "model": "gpt-4"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "`tiny`" in answer.json()["error"]["message"]


def test_numbers_that_are_not_finite_are_a_500(server: ServerProcess) -> None:
    for stream in (False, True):
        answer = server.post("/v1/completions", {"prompt": f"a{POISON}", "stream": stream})
        assert answer.status_code == 500
        assert "not finite" in answer.json()["error"]["message"]
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_row(server: ServerProcess, stream: bool) -> None:
    with httpx.Client(base_url=server.url) as leaving:
        body = {**ENDLESS, "stream": stream}
        if stream:
            with leaving.stream("POST", "/v1/completions", json=body, timeout=DEADLINE) as answer:
                lines = answer.iter_lines()
                next(lines)
                assert server.gauge("ddtree_running") == 1
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/v1/completions", json=body, timeout=0.3)
    wait_for(lambda: server.gauge("ddtree_running") == 0, "the row to be free", deadline=10)


def test_the_server_stays_responsive_while_it_decodes(server: ServerProcess) -> None:
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json={**ENDLESS, "stream": True}, timeout=DEADLINE
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        for _ in range(20):
            assert server.get("/health").json()["status"] == "ok"
        # Others decode beside it.
        assert text_of(server.complete(PROMPT, max_tokens=5, temperature=0))
        next(lines)


def test_health_ready_and_server_info(server: ServerProcess) -> None:
    health = server.get("/health")
    assert health.status_code == 200
    assert 0 <= health.json()["heartbeat_age_seconds"] < 30
    assert server.get("/ready").json() == {"status": "ready"}
    before = server.get("/server_info").json()
    answer = server.complete(PROMPT, max_tokens=20, temperature=0)
    info = server.get("/server_info").json()
    assert info["pid"] == server.process.pid
    assert (info["engine"], info["mode"], info["budget"], info["topk"]) == (
        "ddtree-engine",
        "tree",
        24,
        8,
    )
    assert (info["block_size"], info["recurrent_state"]) == (6, "exact")
    assert info["rounds"] == "host"
    assert (info["backend"], info["device"], info["dtype"]) == ("torch-cpu", "cpu", "float32")
    assert (info["max_running"], info["max_queue"], info["max_context"]) == (3, 64, 6_000)
    assert info["model"]["name"] == "tiny"
    assert info["model"]["fingerprint"].startswith("sha256:")
    assert info["drafter"]["mask_token_id"] == 4
    assert info["drafter"]["target_layer_ids"] == [0, 2]
    assert info["build"].startswith("sha256:")
    assert info["versions"]["torch"]
    grown = {key: info["totals"][key] - before["totals"][key] for key in ("requests", "tokens")}
    assert grown == {"requests": 1, "tokens": 20}
    assert info["totals"]["rounds"] - before["totals"]["rounds"] == answer["ddtree"]["rounds"]
    assert info["totals"]["decode_tokens_per_second"] > 0


def test_metrics_can_be_scraped(server: ServerProcess) -> None:
    server.complete(PROMPT, max_tokens=20, temperature=0, ddtree={"mode": "shadow"})
    response = server.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = {one.name: one for one in text_string_to_metric_families(response.text)}
    for name in (
        "ddtree_acceptance_length",
        "ddtree_rounds",
        "ddtree_tokens",
        "ddtree_queue_length",
        "ddtree_running",
        "ddtree_stage_seconds",
        "ddtree_shadow_acceptance_length",
        "ddtree_http_requests",
    ):
        assert families[name].samples, name
    (info,) = families["ddtree_engine_info"].samples
    assert (info.labels["mode"], info.labels["budget"]) == ("tree", "24")
    statuses = families["ddtree_http_requests"].samples
    assert {"path": "/v1/completions", "status": "200"} in [one.labels for one in statuses]


def test_openai_client(client: openai.OpenAI, server: ServerProcess) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "ddtree-engine"
    completion = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=30, temperature=0.7, seed=9, stop=["zzz"]
    )
    pieces = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=30, temperature=0.7, seed=9, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in pieces) == completion.choices[0].text
    assert completion.usage is not None
    assert completion.model_extra is not None
    assert completion.model_extra["ddtree"]["seed"] == 9
    with pytest.raises(openai.BadRequestError, match="`n` is not supported"):
        client.completions.create(model="tiny", prompt=PROMPT, n=2)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt=PROMPT)
    with pytest.raises(openai.InternalServerError, match="not finite"):
        client.completions.create(model="tiny", prompt=POISON)


def test_openai_client_chat(client: openai.OpenAI) -> None:
    conversation: Any = [
        {"role": "system", "content": "Write Python."},
        {"role": "user", "content": [{"type": "text", "text": "fib"}]},
    ]
    options: Any = {"model": "tiny", "temperature": 0.7, "seed": 6, "max_completion_tokens": 40}
    answer = client.chat.completions.create(messages=conversation, **options)
    message = answer.choices[0].message
    assert message.role == "assistant"
    assert message.content
    chunks = list(
        client.chat.completions.create(
            messages=conversation, stream=True, stream_options={"include_usage": True}, **options
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = [one.choices[0].delta.content or "" for one in chunks if one.choices]
    assert "".join(text) == message.content
    assert chunks[-1].usage == answer.usage
    # An answer can be sent back as part of the next request.
    conversation.append(message.model_dump())
    following = client.chat.completions.create(messages=conversation, **options)
    assert following.usage is not None
    assert answer.usage is not None
    assert following.usage.prompt_tokens > answer.usage.prompt_tokens


def test_chat_uses_the_template(server: ServerProcess) -> None:
    fields = {"temperature": 0, "max_tokens": 20}
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    chat = server.post("/v1/chat/completions", body).json()
    plain = server.complete("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", **fields)
    assert chat["choices"][0]["message"]["content"] == text_of(plain)
    assert chat["usage"] == plain["usage"]
    assert chat["object"] == "chat.completion"
