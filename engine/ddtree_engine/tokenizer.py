"""A checkpoint's tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Backend

from ddtree_engine.errors import CheckpointError, RequestError


class Tokenizer:
    """Text to token ids and back, as the checkpoint's `tokenizer.json` says.

    Attributes:
        eos_ids: tokens that end a text, from `generation_config.json` or `config.json`.
    """

    def __init__(
        self, backend: Backend, eos_ids: frozenset[int], chat_template: str | None
    ) -> None:
        self._backend = backend
        self.eos_ids = eos_ids
        self._chat_template = None
        if chat_template is not None:
            # The template comes with the weights: it runs in jinja2's sandbox.
            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            environment.globals["raise_exception"] = _raise_template_error
            self._chat_template = environment.from_string(chat_template)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Load the tokenizer in a model folder.

        Raises:
            CheckpointError: there is no readable `tokenizer.json`, or a template that is no
                template.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(
                f"`{folder}` has no tokenizer.json",
                hint="copy the tokenizer files of the checkpoint beside its weights",
            )
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise CheckpointError(f"`{path}` is not a tokenizer") from error
        settings = _json(folder / "tokenizer_config.json")
        template = settings.get("chat_template")
        if (folder / "chat_template.jinja").is_file():
            template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        eos = _json(folder / "generation_config.json").get("eos_token_id")
        if eos is None:
            config = _json(folder / "config.json")
            eos = config.get("text_config", config).get("eos_token_id", [])
        ids = frozenset(eos if isinstance(eos, list) else [eos])
        try:
            return cls(backend, ids, template if isinstance(template, str) else None)
        except TemplateError as error:
            raise CheckpointError(f"the chat template of `{folder}` is not usable") from error

    @property
    def vocab_size(self) -> int:
        """Number of tokens, specials included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens written in it count as such, none are added."""
        return self._backend.encode(text, add_special_tokens=False).ids

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
        except TemplateError as error:
            raise RequestError(f"the chat template refuses these messages: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"`{path}` can't be read") from error
    return data if isinstance(data, dict) else {}


def _raise_template_error(message: str) -> None:
    raise TemplateError(message)
