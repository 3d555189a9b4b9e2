"""The errors that reach a user: one message, its cause, and a hint with the next step."""

from __future__ import annotations


class EngineError(Exception):
    """A failure that a user can understand and act on.

    Attributes:
        message: what failed, in one sentence, with the names of what it is about.
        hint: the next step, or None where there is none to suggest.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def render(self) -> str:
        """Return the text that a terminal shows: `error:`, the chain of causes, `hint:`."""
        lines = [f"error: {self.message}"]
        cause = self.__cause__
        while cause is not None:
            lines.append(f"  caused by: {cause}")
            cause = cause.__cause__
        if self.hint is not None:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class CheckpointError(EngineError):
    """A model folder that can't be loaded: missing file, wrong tensor, unknown architecture."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(
            message,
            hint=hint
            or "the folder may be damaged, cut short, or of a model that this engine does not run: "
            "compare it with its source",
        )


class RequestError(EngineError):
    """A request that can't be served as asked; the server answers 400."""


class NotFiniteError(EngineError):
    """A request whose own path met numbers that are not finite; others are not touched."""

    def __init__(self) -> None:
        super().__init__(
            "the model's numbers for this request are not finite",
            hint="look for damaged weights, or a dtype too narrow for the model",
        )


class CapacityError(EngineError):
    """More than the engine has room for: context, rows or queue."""


class OutOfMemoryError(CapacityError):
    """No memory for a step: the request that came last ends, and the server answers 503."""
