"""Trials as plain data, for files."""

import json
from collections.abc import Mapping
from typing import Any

from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from trainer.runtime.directory import read_json
from trainer.runtime.wall_clock import goodput
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import to_json_text

FORMAT = 5
"""The version of exported files."""


def content(trial: Trial) -> dict[str, Any]:
    """Everything that the study stores of a trial, as JSON data."""
    lineage = trial.lineage
    return {
        'trial': trial.id,
        'state': trial.status,
        'reason': trial.reason,
        'stopped': trial.status == 'stopped',
        'decisions': trial.decisions,
        'rewards': list(trial.rewards),
        'metrics': dict(trial.metrics),
        'attributes': dict(trial.attributes),
        'origin': lineage.origin,
        'parent': lineage.parent,
        'retry_of': lineage.retry_of,
        'replicate': lineage.replicate,
        'replicate_of': lineage.replicate_of_here,
        'warm_start': lineage.warm_start,
        'weights_from': lineage.weights_from,
        'replaces': lineage.replaces,
        'pauses': list(trial.record.pauses),
        'created': trial.created.isoformat(),
        'ended': trial.completed.isoformat() if trial.completed else None,
        'seconds': trial.seconds,
        'devices': trial.record.run_time.devices,
        'profile': dict(trial.record.profile),
        'goodput': goodput(trial.record.profile),
        'attempt': trial.attempt,
        'history': trial.history,
        'measurements': [
            {
                'step': each.step,
                'rewards': list(each.rewards),
                'metrics': dict(each.metrics),
                'checkpoint': each.checkpoint,
            }
            for each in trial.measurements
        ],
    }


def export(study: StudyView) -> dict[str, Any]:
    """Exports a whole study, as JSON data."""
    value, search = to_json_text(study.value), to_json_text(study.search)
    if study.space.why_no_value:
        value, search = study.record.value, study.record.search
    experiment = json.loads(value)
    return {
        'format': FORMAT,
        'experiment': experiment,
        'search': json.loads(search) if search else experiment['search'],
        'data': dict(study.data),
        'trials': [content(trial) for trial in study.trials],
    }


def read(path: str) -> dict[str, Any]:
    """Reads a file that `export` made; raises UserError if that fails."""
    found = read_json(path, path)
    is_export = isinstance(found, dict) and isinstance(found.get('trials'), list)
    if not is_export or not isinstance(found.get('data', {}), dict):
        raise UserError(f'{path}: `studies export` did not write this file')
    return dict(found)


def differences_of_data(study: StudyView, exported: Mapping[str, Any]) -> list[str]:
    """Lists differences between the data of an exported study and of this one, for people."""
    there = exported.get('data', {})
    return [
        f'the fingerprint of {name} is {there[name]} there, and {now} in the study: the rewards '
        'may not be comparable'
        for name, now in study.data.items()
        if name in there and there[name] != now
    ]
