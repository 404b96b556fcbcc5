"""What a study says of itself, in its metadata."""

import dataclasses
import importlib
import json
from collections.abc import Mapping
from typing import Any

import pyglove as pg

from paxtune.config.search import Search
from paxtune.search_space.decisions import spec_to_json
from paxtune.search_space.differences import differences
from paxtune.storage.vizier_store import StudySpec, notes
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import from_json_text, to_json_text

FORMAT = '3'

BUDGETS = (
    'num_trials',
    'max_hours',
    'max_device_hours',
    'target_reward',
    'max_failures',
    'max_consecutive_failures',
    'max_attempts',
    'trial_timeout',
    'keep_checkpoints',
    'max_disk_gb',
)
"""Fields of `Search` that may change while the study goes on."""


@dataclasses.dataclass(frozen=True)
class StudyRecord:
    """Written when the study is made; only its budgets change after that.

    Attributes:
        value: JSON of what is searched, decisions and all.
        search: JSON of how it is searched; None where the value says it, as a `Tunable` does.
        spec: JSON of the search space.
        data: fingerprints of the data that the trials see, by input.
        priors: trials of other studies that the algorithm may learn from, as plain data.
    """

    value: str
    search: str | None
    spec: str
    data: Mapping[str, str]
    priors: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @classmethod
    def of(
        cls,
        value: Any,
        search: Search | None,
        spec: pg.DNASpec,
        data: Mapping[str, str],
        priors: list[dict[str, Any]],
    ) -> 'StudyRecord':
        """The record of a study of `value`."""
        search_text = None if search is None else to_json_text(search)
        return cls(to_json_text(value), search_text, spec_to_json(spec), data, priors)

    def to_notes(self) -> dict[str, str]:
        """As notes of a study."""
        return {
            'format': FORMAT,
            'value': self.value,
            'search': self.search or '',
            'dna_spec': self.spec,
            'data': json.dumps(dict(self.data), sort_keys=True),
            'priors': json.dumps(self.priors),
        }

    @classmethod
    def read(cls, study: StudySpec, source: JobPath | None) -> 'StudyRecord':
        """From a study.

        Raises:
            UserError: it was made by another program, or another version of this one, or somebody
                has changed what it says.
        """
        own = notes(study)
        if own.get('format') != FORMAT:
            raise UserError(
                f'{source}: the study was not made by this version of paxtune: it has format '
                f'{own.get("format")}, {FORMAT} was expected.'
            )
        try:
            data, priors = json.loads(own['data']), json.loads(own['priors'])
            _check_data(data)
            _check_priors(priors)
            # Others read these, while the study runs.
            int(own.get('exhausted', -1))
            set(map(int, json.loads(own.get('stop') or '[]')))
            return cls(own['value'], own['search'] or None, own['dna_spec'], data, priors)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise UserError(
                f'{source}: what the study says of itself cannot be read: {error!r}'
            ) from error


def _check_data(data: Any) -> None:
    if not isinstance(data, dict) or not all(isinstance(each, str) for each in data.values()):
        raise TypeError('data')


def _check_priors(priors: Any) -> None:
    if not isinstance(priors, list):
        raise TypeError('priors')
    for each in priors:
        for number in (*each['decisions'].values(), *each['scores']):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise TypeError(f'priors: {number!r}')


def searched(record: StudyRecord, source: str) -> tuple[Any, Search]:
    """What a study searches, and how.

    Args:
        record: of the study.
        source: where it is, for messages.

    Raises:
        UserError: it cannot be rebuilt.
    """
    # Known everywhere, as no experiment of anyone's names its module.
    importlib.import_module('paxtune.simulation.replay_workload')
    value: Any = from_json_text(record.value, object, source)
    if record.search is not None:
        return value, from_json_text(record.search, Search, source)
    search = getattr(value, 'search', None)
    if not isinstance(search, Search):
        raise UserError(f'{source}: the study does not say how it is searched')
    return value, search


def refuse_changes(stored: StudyRecord, now: StudyRecord, directory: JobPath | None) -> None:
    """Compares the study that is in a directory with the one that was asked for.

    Raises:
        UserError: they differ in more than the search's budgets.
    """
    differences = _differences_between(stored.value, now.value, 'search.')
    differences += _differences_between(stored.search or '{}', now.search or '{}', '')
    if differences:
        raise UserError(
            f'{directory} holds a study of another experiment. There, and now:\n'
            + '\n'.join(differences)
            + '\nUse another --job_log_dir for the changed experiment.'
        )
    for name in sorted({*stored.data, *now.data}):
        before, after = stored.data.get(name), now.data.get(name)
        if before != after:
            raise UserError(
                f'{directory} holds a study of other data: the fingerprint of {name} was {before} '
                f'there, and is {after} now. Use another --job_log_dir for the changed data.'
            )


def _differences_between(before: str, after: str, search: str) -> list[str]:
    """What differs between two values, given as JSON, but for the budgets of the search.

    Args:
        before: what was stored.
        after: what was asked for.
        search: what the paths of the search's fields begin with.
    """
    if before == after:
        return []
    there, asked = (from_json_text(text, pg.Symbolic, 'the study') for text in (before, after))
    for path in (f'{search}{name}' for name in BUDGETS):
        if asked.sym_has(path) and there.sym_has(path):
            there.rebind({path: asked.sym_get(path)}, raise_on_no_change=False)
    # Compared as text: a study that an older version wrote lacks what has a default now.
    if to_json_text(there) == to_json_text(asked):
        return []
    return [f'  {difference}' for difference in differences(there, asked)]
