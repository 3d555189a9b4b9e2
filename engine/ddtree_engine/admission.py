"""Which requests are let in: those that can run to their end."""

from __future__ import annotations

from ddtree_engine.errors import RequestError
from ddtree_engine.sequence import Mode, Sequence


def check_request(sequence: Sequence, *, context: int, vocab_size: int, drafter: bool) -> None:
    """Refuse a request that could not run to its end.

    Args:
        sequence: the request.
        context: tokens that its prompt and `max_tokens` may be together.
        vocab_size: of the target.
        drafter: whether there is one.

    Raises:
        RequestError: an empty prompt, a token outside the vocabulary, a mode without its drafter,
            `max_tokens` below 1, or prompt and `max_tokens` together longer than the context.
    """
    if not sequence.prompt:
        raise RequestError("the prompt is empty", hint="give at least one token")
    if sequence.max_tokens < 1:
        raise RequestError(f"max_tokens must be 1 or more, got {sequence.max_tokens}")
    if not drafter and sequence.speculation.mode is not Mode.AR:
        raise RequestError(
            f"mode `{sequence.speculation.mode}` needs a drafter",
            hint="start the engine with --drafter, or ask for mode `ar`",
        )
    total = len(sequence.prompt) + sequence.max_tokens
    if total > context:
        raise RequestError(
            f"{len(sequence.prompt)} prompt tokens and max_tokens {sequence.max_tokens} exceed "
            f"the context of {context} tokens",
            hint="shorten the prompt or lower max_tokens",
        )
    # Last: a prompt that does not fit may be of millions of tokens.
    if any(not 0 <= token < vocab_size for token in sequence.prompt):
        raise RequestError(f"the prompt has a token outside the vocabulary of {vocab_size}")
