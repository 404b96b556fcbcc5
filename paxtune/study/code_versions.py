"""Versions of the users' code in a study: they separate the trials of changed code."""

import dataclasses
import re
import sys
from collections.abc import Sequence
from typing import Any

from paxtune.study.record import CodeVersion, StudyRecord
from trainer.symbolic.code_hashes import code_hashes, differing

_NAMED = 3
_FORMAT = 2
"""The format of the hashes. Hashes of other formats are not compared."""


def current(*values: Any) -> CodeVersion:
    """Hashes the users' classes and functions in values, as this process has them."""
    return CodeVersion(f'{sys.implementation.cache_tag} {_FORMAT}', code_hashes(*values))


def in_module(version: CodeVersion, module: str, other: str) -> CodeVersion:
    """Returns a version with the code of one module under the name of another one."""
    names = {name: re.sub(rf'^{re.escape(module)}\.', f'{other}.', name) for name in version.hashes}
    return dataclasses.replace(
        version, hashes={names[name]: each for name, each in version.hashes.items()}
    )


def of_trial(record: StudyRecord, number: int) -> CodeVersion | None:
    """Returns the version of the code that a trial began with; None if the study has none."""
    return next((each for each in reversed(record.code) if each.since <= number), None)


def changed(before: CodeVersion | None, now: CodeVersion) -> list[str]:
    """Names the classes and functions that differ; none where another Python has made the hashes.

    Example:
        >>> changed(CodeVersion('3', {'my.Net': 'a'}), CodeVersion('3', {'my.Net': 'b'}))
        ['my.Net']
    """
    if before is None or before.python != now.python:
        return []
    return differing(before.hashes, now.hashes)


def continued(record: StudyRecord, now: CodeVersion, max_id: int) -> StudyRecord:
    """Adds a version to the record of a study, from the next trial on, if the code differs.

    Args:
        max_id: the number of the last trial.
    """
    last = of_trial(record, max_id + 1)
    if last is not None and last.python == now.python and not changed(last, now):
        return record
    kept = [each for each in record.code if each.since <= max_id]
    return dataclasses.replace(record, code=(*kept, dataclasses.replace(now, since=max_id + 1)))


def warning(record: StudyRecord, now: CodeVersion, max_id: int) -> str:
    """Renders a line if the code has changed since the last trial of a study; '' if not."""
    if not max_id or not (names := changed(of_trial(record, max_id), now)):
        return ''
    last = 'trial 1' if max_id == 1 else f'trials up to {max_id}'
    return (
        f'the code of {named(names)} has changed since {last} of this study began: the results of '
        'new trials may not be comparable. To keep them apart, start another study'
    )


def changes(record: StudyRecord) -> list[tuple[int, list[str]]]:
    """Lists the changes of the code in a study: the first trial of each version, and the names."""
    pairs = zip(record.code, record.code[1:], strict=False)
    return [(now.since, names) for before, now in pairs if (names := changed(before, now))]


def named(names: Sequence[str]) -> str:
    """Renders a few names of classes and functions."""
    more = f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''
    return f'{", ".join(names[:_NAMED])}{more}'
