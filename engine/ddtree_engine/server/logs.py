"""Logs on stderr: one line an event, `LEVEL message`; the journal adds time and process."""

from __future__ import annotations

import logging
import sys
import traceback

LEVELS = ("debug", "info", "warning", "error")


class OneLine(logging.Formatter):
    """Formats a record as `LEVEL message`, an exception as its frames in the same line."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line = f"{record.levelname} {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            frames = [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__)
            ]
            line += f" [{type(error).__name__}: {error}; at {' > '.join(frames)}]"
        return line.replace("\r", "").replace("\n", "\\n")


def configure(level: str) -> None:
    """Send all logs from `level` on to stderr; libraries from `warning` on unless debugging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    if level != "debug":
        logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.root.level))
        logging.getLogger("asyncio").setLevel(max(logging.WARNING, logging.root.level))
