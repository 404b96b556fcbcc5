"""Changes of a stored definition as JSON, which needs none of its classes."""

import dataclasses
import hashlib
import json
from typing import Any

from paxtune.config.budget import Budget
from paxtune.config.faults import Faults
from paxtune.config.retention import Retention
from paxtune.study.record import StudyRecord

MUTABLE = {'budget': Budget, 'faults': Faults, 'retention': Retention}
"""Fields of `Search` that may change later, with their classes."""

_CHANGING = (
    *('exhausted', 'stop_requests', 'pause_requested', 'is_ended'),
    *('metadata', 'notes', 'note', 'profile', 'code'),
)
"""Fields of `StudyRecord` that workers and people may write. All others are fixed."""


def redefined(stored: StudyRecord, now: StudyRecord) -> StudyRecord:
    """Returns the stored record with the present budgets."""
    if stored.search:
        search = _with_mutable(json.loads(stored.search), json.loads(now.search or '{}'))
        return _replaced(stored, 'search', search)
    value = json.loads(stored.value)
    if 'search' in value:
        given = json.loads(now.value).get('search', {})
        value |= {'search': _with_mutable(value['search'], given)}
    return _replaced(stored, 'value', value)


def is_redefinition(stored: StudyRecord, now: StudyRecord) -> bool:
    """Returns True if a record differs from the stored one in budgets, requests and notes only."""
    try:
        return has_definition(now, redefined(stored, now))
    except (AttributeError, RecursionError, TypeError, ValueError):  # It is no definition.
        return False


def has_definition(record: StudyRecord, other: StudyRecord) -> bool:
    """Returns True if two records differ in requests and notes only."""
    fixed = (each.name for each in dataclasses.fields(record) if each.name not in _CHANGING)
    return all(getattr(record, name) == getattr(other, name) for name in fixed)


def fingerprint(record: StudyRecord) -> str:
    """Returns a hash of the fields that may not change."""
    bare = redefined(record, StudyRecord(value='{}', search='', spec='', data={}))
    texts = [json.loads(text or '{}') for text in (bare.value, bare.search, bare.spec)]
    content = json.dumps([*texts, dict(record.data)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _with_mutable(search: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    kept = {name: each for name, each in search.items() if name not in MUTABLE}
    return kept | {name: other[name] for name in MUTABLE if name in other}


def _replaced(record: StudyRecord, name: str, content: object) -> StudyRecord:
    if content == json.loads(getattr(record, name)):
        return record
    changed: dict[str, Any] = {name: json.dumps(content, indent=2)}
    return dataclasses.replace(record, **changed)
