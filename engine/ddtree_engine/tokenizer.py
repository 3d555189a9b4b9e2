"""A checkpoint's tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Backend

from ddtree_engine.errors import CheckpointError, RequestError
from ddtree_engine.json_file import read_json_object
from ddtree_engine.readable import check_readable


class Tokenizer:
    """Text to token ids and back, as the checkpoint's `tokenizer.json` says.

    Attributes:
        eos_ids: tokens that end a text, from `generation_config.json` or `config.json`.
    """

    def __init__(
        self, backend: Backend, eos_ids: frozenset[int], chat_template: str | None
    ) -> None:
        # The file may carry what its training cut or filled texts to; a prompt is taken whole.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.eos_ids = eos_ids
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self._longest = max(map(len, vocabulary), default=1)
        self._chat_template = None
        if chat_template is not None:
            # The template comes with the weights: it runs in jinja2's sandbox.
            environment = ImmutableSandboxedEnvironment(
                trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
            )
            environment.globals["raise_exception"] = _raise_template_error
            self._chat_template = environment.from_string(chat_template)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Load the tokenizer in a model folder.

        Raises:
            CheckpointError: there is no readable `tokenizer.json`, or a template that is no
                template, or an `eos_token_id` that is no token.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(
                f"`{folder}` has no tokenizer.json",
                hint="copy the tokenizer files of the checkpoint beside its weights",
            )
        check_readable(path)
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise CheckpointError(f"`{path}` is not a tokenizer") from error
        try:
            return cls(backend, _eos_ids(folder), _chat_template(folder))
        except (TemplateError, OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"the chat template of `{folder}` is not usable") from error

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id, specials included."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    def may_fit(self, text: str, tokens: int) -> bool:
        """Whether `text` can be so few tokens: false says that it is far too long to be encoded.

        No token is longer than the longest of the vocabulary, and Unicode's normal forms, which a
        tokenizer may bring a text to, make one character of four at most (UAX 15).
        """
        return len(text) <= 4 * self._longest * tokens

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens written in it count as such, none are added.

        Other threads run meanwhile: only the batch method of the backend lets go of the
        interpreter's lock, and a text of megabytes takes seconds.

        Raises:
            RequestError: the text has half of a surrogate pair, which is no character.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("the prompt is not Unicode text", hint="send it as UTF-8") from error
        return self._backend.encode_batch([text], add_special_tokens=False)[0].ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """Render a conversation with the checkpoint's chat template.

        Raises:
            RequestError: the checkpoint has no template, or the template refuses these messages.
        """
        if self._chat_template is None:
            raise RequestError(
                "this model has no chat template", hint="use /v1/completions with a plain prompt"
            )
        try:
            return self._chat_template.render(
                messages=messages, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # a template can raise whatever an expression in it raises
            raise RequestError(f"the chat template refuses these messages: {error}") from error


def check_vocabulary(tokenizer: Tokenizer, folder: Path, vocab_size: int) -> None:
    """Refuse a tokenizer with tokens that the model of `folder` does not have.

    Raises:
        CheckpointError: it has some.
    """
    if tokenizer.vocab_size > vocab_size:
        raise CheckpointError(
            f"the tokenizer of `{folder}` has ids up to {tokenizer.vocab_size - 1}, the model "
            f"{vocab_size} tokens",
            hint="use the tokenizer that came with these weights",
        )


def _eos_ids(folder: Path) -> frozenset[int]:
    """The tokens that end a text: those of `generation_config.json`, else of `config.json`."""
    path = folder / "generation_config.json"
    eos = _json(path).get("eos_token_id")
    if eos is None:
        path = folder / "config.json"
        config = _json(path)
        inner = config.get("text_config")
        eos = (inner if isinstance(inner, dict) else config).get("eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(one) is int for one in ids):
        raise CheckpointError(f"`{path}`: eos_token_id is a token id or a list of them, not {eos}")
    return frozenset(ids)


def _chat_template(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        check_readable(path)
        return path.read_text(encoding="utf-8")
    template = _json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        # Several by name, in older checkpoints.
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _json(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _raise_template_error(message: str) -> None:
    raise TemplateError(message)
