"""Stop strings in text that arrives in pieces of any size."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text through up to the first stop string, which may span any number of pieces.

    The first stop string is the one that *ends* first, so that it is found as soon as it is there;
    of those that end at the same character, the longest. The text before it does not depend on how
    the text was cut into pieces.

    Attributes:
        stopped: whether a stop string has come; nothing is passed on from then.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string is empty")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, piece: str) -> str:
        """Take the next piece; return the text that is now known to come before any stop string.

        The longest tail that could be the start of a stop string is held back.
        """
        if self.stopped:
            return ""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) != -1]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the tail that was held back: no more text comes, so it starts no stop string."""
        tail, self._held = self._held, ""
        return tail

    def _possible_start(self, text: str) -> int:
        """Length of the longest tail of `text` that a stop string starts with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
