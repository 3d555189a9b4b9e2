"""Prompts from the held-out modules: source cut inside a function, where a line ends."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from ddtree_engine.training.corpus import Document

MIN_TOKENS, MAX_TOKENS = 100, 300
MIN_BODY_LINES = 12
"""A function shorter than this has too little left to continue."""

_DEFINITIONS = ("def ", "class ", "async def ", "@")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and where it was cut: ``name`` is the function's dotted name."""

    name: str
    module: str
    prompt: str


def held_out_prompts(
    documents: Sequence[Document], tokenizer: Tokenizer, count: int
) -> list[Prompt]:
    """At most ``count`` prompts of 100 to 300 tokens, one a module, spread evenly over modules.

    Of each module the first public function with a long enough body is taken. The prompt ends with
    a whole line at two fifths of that body, and begins as early as 300 tokens allow, where a
    definition begins if that leaves 100 tokens, else after a blank line, else anywhere.
    """
    found = [p for d in documents if (p := _from_module(d, tokenizer)) is not None]
    if len(found) <= count:
        return found
    return [found[i * len(found) // count] for i in range(count)]


def _from_module(document: Document, tokenizer: Tokenizer) -> Prompt | None:
    lines = document.text.split("\n")
    for name, node in _functions(ast.parse(document.text), ""):
        body = node.body
        docstring = ast.get_docstring(node, clean=False) is not None
        if docstring:
            body = body[1:]
        if not body or node.end_lineno is None:
            continue
        first, last = body[0].lineno, node.end_lineno
        if last - first + 1 < MIN_BODY_LINES:
            continue
        end = first + (last - first) * 2 // 5  # this line, counted from 1, is the prompt's last
        while end < last and not lines[end - 1].strip():
            end += 1
        text = _window(lines[:end], tokenizer)
        if text is not None:
            return Prompt(f"{document.module}.{name}", document.module, text)
    return None


def _functions(
    tree: ast.AST, prefix: str
) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Public functions and methods, in the order of the source."""
    found: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found += _functions(node, f"{prefix}{node.name}.")
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith(
            "_"
        ):
            found.append((f"{prefix}{node.name}", node))
    return found


def _window(lines: list[str], tokenizer: Tokenizer) -> str | None:
    """The end of ``lines`` that fits, or None if even all of it is too short."""
    best: tuple[int, str] | None = None
    for start in range(len(lines) - 1, -1, -1):
        text = "\n".join(lines[start:])
        size = len(tokenizer.encode(text).ids)
        if size > MAX_TOKENS:
            break
        if size < MIN_TOKENS or not lines[start].strip():
            continue
        after_blank = start == 0 or not lines[start - 1].strip()
        definition = lines[start].lstrip().startswith(_DEFINITIONS)
        rank = 2 * definition + after_blank
        if best is None or rank >= best[0]:
            best = (rank, text)
    return None if best is None else best[1]
