"""Token ids to text while they come: whole characters only, up to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddtree_engine.stop_strings import StopStrings

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A UTF-8 character has at most 4 bytes, so the last 4 tokens of a text hold its last character.
CONTEXT = 4
# Tokens after which all but the context is let go.
WINDOW = 16


class Detokenizer:
    """Text of tokens as they come, whose pieces joined are the text of all tokens.

    A byte-level token may end inside a UTF-8 character. A cut character decodes to exactly one
    U+FFFD at the end of the text, and whatever follows changes no other character of it, so that
    one is held back until it is whole or known to be broken.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._given = 0

    def feed(self, tokens: Sequence[int]) -> str:
        """Return the text that `tokens` add, without a character that is still incomplete."""
        self._window.extend(tokens)
        piece = self._give(_settled(self._decode(self._window)))
        if len(self._window) > WINDOW:
            self._let_go()
        return piece

    def finish(self) -> str:
        """Return what was held back: the character will never be whole."""
        return self._give(self._decode(self._window))

    def _give(self, text: str) -> str:
        piece, self._given = text[self._given :], max(self._given, len(text))
        return piece

    def _let_go(self) -> None:
        """Keep only the tokens that the text of the next ones may depend on."""
        # A token without text (a special one) has no byte of the character that may be cut.
        self._window = [token for token in self._window if self._decode([token])][-CONTEXT:]
        self._given = len(_settled(self._decode(self._window)))


def _settled(text: str) -> str:
    return text[:-1] if text.endswith(REPLACEMENT) else text


class TextStream:
    """The text of one request, as its tokens come.

    Attributes:
        consumed: tokens so far, up to and including the one that completed a stop string.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = StopStrings(stops)
        self._look_for_stops = bool(stops)
        self.consumed = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come; text and tokens after it are ignored."""
        return self._stops.stopped

    def feed(self, tokens: Sequence[int]) -> str:
        """Take the tokens of a round; return the text to pass on.

        Where stop strings are looked for, tokens are taken one by one: how many a request has used
        then does not depend on how many a round emitted.
        """
        if not self._look_for_stops:
            self.consumed += len(tokens)
            return self._detokenizer.feed(tokens)
        pieces = []
        for token in tokens:
            if self.stopped:
                break
            self.consumed += 1
            pieces.append(self._stops.feed(self._detokenizer.feed([token])))
        return "".join(pieces)

    def finish(self) -> str:
        """Return the text that was held back, at the end of a request that no stop string ended."""
        if self.stopped:
            return ""
        return self._stops.feed(self._detokenizer.finish()) + self._stops.finish()
