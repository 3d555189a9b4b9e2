"""Errors that a user reads: what failed, why, what to do next, and the exit code it leads to."""

from enum import IntEnum

TRACEBACK = "DDTREECTL_TRACEBACK"
"""The variable that makes ddtreectl print the traceback of a failure."""

MISTAKE = f"this is a mistake in ddtreectl; please report what it says with {TRACEBACK}=1"


class ExitCode(IntEnum):
    """What the process says to the shell. The numbers are part of the interface."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    PARTIAL = 3
    UNREACHABLE = 4
    LOCKED = 5
    ROLLED_BACK = 6


class DdtreectlError(Exception):
    """A failure with a message for the user.

    Args:
        message: what failed, on which host, in the present tense.
        cause: what the failing tool or host said, if anything.
        hint: the next action, if one is known.
        evidence: what was seen of a failed service before it was taken down, line by line.
    """

    exit_code = ExitCode.FAILED

    def __init__(
        self, message: str, *, cause: str = "", hint: str = "", evidence: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause.strip()
        self.hint = hint
        self.evidence = evidence


class UsageError(DdtreectlError):
    """The command line asks for something that cannot be."""

    exit_code = ExitCode.USAGE


class InventoryError(DdtreectlError):
    """An inventory file is missing or wrong; the message has file:line:column."""

    exit_code = ExitCode.USAGE


class RefusedError(DdtreectlError):
    """A check made before anything is touched says no."""


class StepError(DdtreectlError):
    """A step of a plan failed."""


class UnreachableError(DdtreectlError):
    """The host does not answer: nothing is known about what it runs."""

    exit_code = ExitCode.UNREACHABLE


class LockedError(DdtreectlError):
    """Another operator holds the lock of the host."""

    exit_code = ExitCode.LOCKED


class RolledBackError(DdtreectlError):
    """The new generation failed and the last good one serves again."""

    exit_code = ExitCode.ROLLED_BACK
