"""Requests of OpenAI's API, as far as this engine serves them.

A field that would change the result and is not supported is refused unless it has the value that
changes nothing; a field that can't change the result is ignored; an unknown field is refused, so
that a misspelt one is not silently left out. Numbers and truth values are JSON's own: none is read
out of a string, and `true` is no 1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

MAX_STOPS = 4

# Fields of OpenAI's that change nothing in the text.
_HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# Fields of OpenAI's and of other servers that are not supported, with the values that mean nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}


def _same(value: Any, neutral: Any) -> bool:
    # `logprobs: 0` asks for something that `logprobs: false` does not.
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _unicode(text: str) -> str:
    # JSON can spell half of a surrogate pair, which is no character and has no UTF-8.
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text has half of a surrogate pair") from None
    return text


Text = Annotated[str, AfterValidator(_unicode)]


def _stops(value: Any) -> Any:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


class DDTree(BaseModel):
    """The extension field of requests: this request's own way to speculate."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["ar", "linear", "shadow", "tree"] | None = None
    budget: StrictInt | None = Field(default=None, ge=1)
    topk: StrictInt | None = Field(default=None, ge=1)


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool = False
    include_obfuscation: StrictBool = False


class _GenerationRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: Text | None = None
    max_tokens: StrictInt | None = None
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: StrictInt | None = Field(
        default=None, description="Extension: -1 and 0 keep all tokens."
    )
    seed: StrictInt | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1), AfterValidator(_unicode)]],
        BeforeValidator(_stops),
        Field(max_length=MAX_STOPS),
    ] = Field(default_factory=list)
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: StrictBool | None = Field(
        default=None, description="Extension: go on to `max_tokens`, for measurements."
    )
    ddtree: DDTree | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_what_changes_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {}
        for name, value in data.items():
            if name in _HARMLESS or (name in _NEUTRAL and value is None):
                continue
            if name in _NEUTRAL:
                if not any(_same(value, neutral) for neutral in _NEUTRAL[name]):
                    raise ValueError(f"`{name}` is not supported")
                continue
            kept[name] = value
        return kept

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> _GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("`stream_options` is for `stream: true`")
        return self

    @property
    def limit(self) -> int | None:
        """Tokens to emit at most, if the request says."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_GenerationRequest):
    """POST /v1/completions. One prompt a request: text, or token ids."""

    prompt: Text | list[StrictInt] | list[Text] | list[list[StrictInt]]

    @model_validator(mode="after")
    def _one_prompt(self) -> CompletionRequest:
        nested = [one for one in self.prompt if not isinstance(one, int)]
        if isinstance(self.prompt, list) and len(nested) > 1:
            raise ValueError(
                f"`prompt` has {len(nested)} prompts: one a request is supported, send them apart"
            )
        return self

    @property
    def single_prompt(self) -> str | list[int]:
        """The prompt, out of a list of one."""
        if isinstance(self.prompt, str):
            return self.prompt
        if self.prompt and not isinstance(self.prompt[0], int):
            return self.prompt[0]
        return [one for one in self.prompt if isinstance(one, int)]


class ContentPart(BaseModel):
    """A part of a message; only text is supported."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[ContentPart]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_null(cls, data: Any) -> Any:
        # What a client got as an answer it may send back as it is: absent things are null in it.
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None and value != []}

    def for_template(self) -> dict[str, str]:
        """Return the message as chat templates know it."""
        # OpenAI renamed `system` for newer models; templates know the old name.
        role = "system" if self.role == "developer" else self.role
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": role, "content": text}


class ChatRequest(_GenerationRequest):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: StrictInt | None = None

    @property
    def limit(self) -> int | None:
        """Tokens to emit at most, if the request says; the newer name wins."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens
