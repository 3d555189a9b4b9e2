"""Tokenizers as checkpoints bring them: what is read, what is left out, what is refused."""

from __future__ import annotations

import json
import re
import shutil
import threading
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend

from ddtree_engine.engine import DEMO
from ddtree_engine.errors import CheckpointError, RequestError
from ddtree_engine.inspection import inspect_models
from ddtree_engine.tokenizer import Tokenizer

TEXT = "def f(x):\n    return x\n" * 20
FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (*FILES, "model.safetensors"):
        shutil.copy(DEMO / "target" / name, tmp_path)
    return tmp_path


def test_a_prompt_is_taken_whole_whatever_the_file_says(folder: Path) -> None:
    whole = Tokenizer.load(folder).encode(TEXT)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode(TEXT) == whole
    assert tokenizer.encode("x") == Tokenizer.load(DEMO / "target").encode("x")


def test_a_text_that_can_be_few_tokens_is_never_called_too_long() -> None:
    tokenizer = Tokenizer.load(DEMO / "target")
    vocabulary = json.loads((DEMO / "target" / "tokenizer.json").read_text())["model"]["vocab"]
    longest = tokenizer.decode([vocabulary[max(vocabulary, key=len)]])
    for text in (TEXT, longest * 10, "e\u0301\u0323" * 50, "\U0001f600" * 50, ""):
        assert tokenizer.may_fit(text, len(tokenizer.encode(text)))
    assert not tokenizer.may_fit("a" * (4 * len(longest) * 10 + 1), 10)


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    tokenizer = Tokenizer.load(DEMO / "target")
    done = threading.Event()
    ticks = 0

    def encode() -> None:
        tokenizer.encode(TEXT * 1000)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    # A thread that waits for the interpreter's lock gets a turn or two before the text is done.
    while not done.wait(0.001):
        ticks += 1
    thread.join()
    assert ticks > 10


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(RequestError, match="not Unicode text"):
        Tokenizer.load(DEMO / "target").encode("a\ud800")


def test_ids_past_the_model_are_seen_though_there_are_not_too_many(folder: Path) -> None:
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    name, highest = max(data["model"]["vocab"].items(), key=lambda item: item[1])
    data["model"]["vocab"][name] = 4096
    path.write_text(json.dumps(data))
    assert highest == 4095
    assert Backend.from_file(str(path)).get_vocab_size() == 4096
    with pytest.raises(CheckpointError, match="ids up to 4096, the model 4096 tokens"):
        inspect_models(folder, None, torch.float32)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ("[0, 2]", "1", {0, 2}),
        ("3", "1", {3}),
        (None, "1", {1}),
        ("null", "[1, 4]", {1, 4}),
        (None, "null", set()),
    ],
)
def test_tokens_that_end_a_text(
    folder: Path, generation: str | None, config: str, expected: set[int]
) -> None:
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(f'{{"eos_token_id": {generation}}}')
    (folder / "config.json").write_text(f'{{"text_config": {{"eos_token_id": {config}}}}}')
    assert Tokenizer.load(folder).eos_ids == expected
    (folder / "config.json").write_text(f'{{"eos_token_id": {config}, "text_config": null}}')
    assert Tokenizer.load(folder).eos_ids == expected


@pytest.mark.parametrize("eos", ['"</s>"', "[[1]]", "1.5", "true", '{"a": 1}'])
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_an_end_that_is_no_token(folder: Path, file: str, eos: str) -> None:
    (folder / "generation_config.json").unlink()
    (folder / file).write_text(f'{{"eos_token_id": {eos}}}')
    with pytest.raises(CheckpointError, match=rf"{re.escape(file)}`: eos_token_id"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("file", ["generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[1]", "[" * 100_000])
def test_settings_that_are_no_object(folder: Path, file: str, content: str) -> None:
    (folder / file).write_text(content)
    with pytest.raises(CheckpointError, match=re.escape(file)):
        Tokenizer.load(folder)


LOOP = "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"chat_template": LOOP}, "hi"),
        ({"chat_template": [{"name": "tools", "template": "x"}]}, None),
        (
            {
                "chat_template": [
                    {"name": "tools", "template": "x"},
                    {"name": "default", "template": LOOP},
                ]
            },
            "hi",
        ),
        ({"chat_template": 5}, None),
        ({}, None),
    ],
)
def test_chat_templates_in_every_place(
    folder: Path, settings: dict[str, object], expected: str | None
) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": "you"}]
    tokenizer = Tokenizer.load(folder)
    if expected is None:
        with pytest.raises(RequestError, match="no chat template"):
            tokenizer.chat(messages)
    else:
        assert tokenizer.chat(messages) == expected
    (folder / "chat_template.jinja").write_text("file")
    assert Tokenizer.load(folder).chat(messages) == "file"


@pytest.mark.parametrize("template", [b"\xff", b"{% for %}"])
def test_a_file_that_is_no_template(folder: Path, template: bytes) -> None:
    (folder / "chat_template.jinja").write_bytes(template)
    with pytest.raises(CheckpointError, match=r"chat template of .* is not usable"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    "template", ["{{ messages + 1 }}", "{{ messages[9].a.b }}", "{{ raise_exception('no') }}"]
)
def test_a_template_that_fails_refuses_the_request(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(RequestError, match="refuses these messages"):
        Tokenizer.load(folder).chat([{"role": "user", "content": "hi"}])
