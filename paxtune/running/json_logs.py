"""Structured logs: a line of JSON for each message, with its trial.

A message can have fields of its own: `_LOG.info(…, extra={'fields': {'step': 8}})`.
"""

import datetime
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from absl import logging as absl_logging

from paxtune.study import worker_logs

LOGS = worker_logs.LOGS
"""Where the logs of workers are, in the directory of a study."""

_LOG = logging.getLogger('paxtune')


class JsonLines(logging.Handler):
    """Appends messages to a file.

    Attributes:
        context: fields of each line: study, worker, and while a trial runs, trial and attempt.
        of_threads: fields of the lines of single threads, by their identifiers.
    """

    def __init__(self, path: Path, context: Mapping[str, str | int]) -> None:
        super().__init__(logging.INFO)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.context: dict[str, str | int] = dict(context)
        self.of_threads: dict[int | None, dict[str, str | int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.line(record)
            # Opened each time: a full disk, or a file that was moved, ends no trial.
            with open(self._path, 'ab+') as file:
                end = file.tell()
                # A full disk cuts off a line.
                is_complete = end == 0 or os.pread(file.fileno(), 1, end - 1) == b'\n'
                file.write((b'' if is_complete else b'\n') + line.encode() + b'\n')
        except Exception:
            self.handleError(record)

    def line(self, record: logging.LogRecord) -> str:
        """Renders a message as one line of JSON."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        record_fields = {
            'time': time.isoformat(timespec='milliseconds'),
            'level': record.levelname,
            **self.context,
            **self.of_threads.get(record.thread, {}),
            'message': record.getMessage(),
            **getattr(record, 'fields', {}),
        }
        if record.exc_info:
            record_fields['error'] = logging.Formatter().formatException(record.exc_info)
        return json.dumps(record_fields)


def start(path: Path, **context: str | int) -> JsonLines:
    """Writes the logs of this process to a file, too."""
    handler = JsonLines(path, context)
    # Libraries log warnings alone: Orbax has dozens of lines for each checkpoint.
    absl_logging.get_absl_logger().addHandler(handler)
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    return handler
