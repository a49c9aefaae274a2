"""How Farlet logs: lines for people, or JSON for machines."""

from __future__ import annotations

import json
import logging
import sys

from app.settings import LogFormat


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def set_up(style: LogFormat) -> None:
    """Send every log line to standard error in the chosen form."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if style is LogFormat.JSON else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
