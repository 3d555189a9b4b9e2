"""The corpus, the tokenizer and the prompts."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from ddtree_engine.errors import EngineError
from ddtree_engine.training.corpus import Document, held_out_modules, is_test_of, read_corpus
from ddtree_engine.training.prompts import MAX_TOKENS, MIN_TOKENS, held_out_prompts
from ddtree_engine.training.tokenizer import (
    END_OF_TEXT,
    MASK,
    SPECIAL_TOKENS,
    load_tokenizer,
    save_tokenizer,
    token_id,
    train_tokenizer,
)

FUNCTION = (
    "    if first:\n        return second\n    for item in third:\n        print(item)\n" * 16
)
MODULE = f"import os\n\n\ndef _hidden():\n    pass\n\n\ndef shown(first, second):\n{FUNCTION}"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([MODULE, "def add(a, b):\n        return a + b\n" * 3], vocab_size=320)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_held_out_modules_and_their_tests_are_never_trained_on(tmp_path: Path) -> None:
    library = write(
        tmp_path,
        {
            "heapq.py": "h = 'a module'\n",
            "json/__init__.py": "j = 'a module'\n",
            "json/decoder.py": "d = 'a module'\n",
            "os.py": "o = 'a module'\n",
            "os_copy.py": "o = 'a module'\n",
            "empty.py": "\n",
            "test/test_heapq.py": "t = 'a module'\n",
            "test/test_json/test_decoder.py": "t = 'more tests'\n",
            "test/test_os.py": "t = 'tests of os'\n",
            "encodings/cp1252.py": "table = 1\n",
            "tables.py": "x = [1, 2, 3, 4, 5, 6, 7, 8, 9]\n",
            "site-packages/other.py": "s = 1\n",
        },
    )
    corpus = read_corpus(library, ["heapq", "json.decoder"])
    assert [d.path for d in corpus.train] == ["json/__init__.py", "os.py", "test/test_os.py"]
    assert [d.module for d in corpus.held_out] == ["heapq", "json.decoder"]
    assert corpus.left_out == {
        "empty.py": "empty",
        "encodings/cp1252.py": "generated character tables",
        "os_copy.py": "the same as os.py",
        "tables.py": "a table of data",
        "test/test_heapq.py": "tests of a held-out module",
        "test/test_json/test_decoder.py": "tests of a held-out module",
    }
    assert corpus.sha256 == read_corpus(library, ["heapq", "json.decoder"]).sha256
    assert corpus.sha256 != read_corpus(library, ["heapq"]).sha256


def test_a_folder_without_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        read_corpus(tmp_path)
    assert "no Python source" in caught.value.message
    assert caught.value.hint


def test_the_list_of_held_out_modules() -> None:
    names = held_out_modules()
    assert len(names) >= 60
    assert len(set(names)) == len(names)
    assert {"argparse", "heapq", "textwrap", "json.decoder"} <= set(names)
    assert not any(name.startswith("#") for name in names)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("test/test_types.py", True),
        ("test/string_tests.py", True),
        ("test/test_dataclasses/__init__.py", True),
        ("test/test_http_cookies.py", True),
        ("test/test_typing.py", False),
        ("types.py", False),
    ],
)
def test_tests_of_modules(path: str, expected: bool) -> None:
    assert is_test_of(path, ["types", "string", "dataclasses", "http.cookies"]) is expected


@settings(max_examples=150)
@given(text=st.text(max_size=200))
def test_the_tokenizer_loses_nothing(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@settings(max_examples=100)
@given(text=st.text(alphabet="\r\n\t \u00a0a_.(<|>", max_size=60))
def test_white_space_survives(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_line_break_and_its_indentation_are_one_token(tokenizer: Tokenizer) -> None:
    tokens = [tokenizer.decode([i]) for i in tokenizer.encode("x\n        return a").ids]
    assert "\n        " in tokens


def test_special_tokens_come_first(tokenizer: Tokenizer) -> None:
    assert [token_id(tokenizer, token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    assert tokenizer.encode(f"a{END_OF_TEXT}b").ids.count(0) == 1
    with pytest.raises(EngineError, match="<nothing>"):
        token_id(tokenizer, "<nothing>")


def test_saved_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path, max_length=99)
    again = load_tokenizer(tmp_path)
    assert again.encode(MODULE).ids == tokenizer.encode(MODULE).ids
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 99
    assert config["mask_token"] == MASK
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [0, 2]


def test_the_chat_template_as_transformers_renders_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    save_tokenizer(tokenizer, tmp_path, max_length=99)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    text = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert loaded(MODULE).input_ids == tokenizer.encode(MODULE).ids


def test_prompts_end_inside_a_function_at_the_end_of_a_line(tokenizer: Tokenizer) -> None:
    documents = [Document("one.py", MODULE), Document("two.py", "x = 1\n")]
    (prompt,) = held_out_prompts(documents, tokenizer, 5)
    assert (prompt.name, prompt.module) == ("one.shown", "one")
    assert prompt.prompt in MODULE
    before, after = MODULE.split(prompt.prompt)
    assert after.startswith("\n")
    assert prompt.prompt.startswith("def _hidden(")
    assert before.endswith("\n")
    assert MIN_TOKENS <= len(tokenizer.encode(prompt.prompt).ids) <= MAX_TOKENS
    function = ast.parse(MODULE).body[2]
    cut_line = (before + prompt.prompt).count("\n") + 1
    assert function.lineno < cut_line < (function.end_lineno or 0)


def test_prompts_are_spread_over_the_modules(tokenizer: Tokenizer) -> None:
    documents = [Document(f"m{i}.py", MODULE) for i in range(10)]
    chosen = held_out_prompts(documents, tokenizer, 3)
    assert [prompt.module for prompt in chosen] == ["m0", "m3", "m6"]
