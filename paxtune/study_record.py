"""What a study says of itself: once, in its metadata."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyglove as pg
from vizier import pyvizier as vz

from paxtune.decisions import spec_to_json
from paxtune.labels import short
from trainer.component import Component
from trainer.errors import UserError
from trainer.serialization import from_json_text, to_json_text

NAMESPACE = 'paxtune'
"""Where all that paxtune writes into Vizier's metadata is."""

REWARD = 'reward'
"""The name of the one metric that Vizier is told to optimize."""

_FORMAT = '1'


@dataclasses.dataclass(frozen=True)
class StudyRecord:
    """Written when the study is made, and never changed.

    Attributes:
        experiment: JSON of the experiment, decisions and all.
        spec: JSON of its search space.
        algorithm: JSON of the algorithm.
        seed: what the algorithm draws from.
        data: fingerprints of the data that the trials see, by input.
    """

    experiment: str
    spec: str
    algorithm: str
    seed: int
    data: Mapping[str, str]

    @classmethod
    def of(cls, tunable: Any, spec: pg.DNASpec, data: Mapping[str, str]) -> 'StudyRecord':
        """The record of a study of `tunable`."""
        return cls(
            experiment=to_json_text(tunable),
            spec=spec_to_json(spec),
            algorithm=to_json_text(tunable.search.algorithm),
            seed=tunable.search.seed,
            data=dict(data),
        )

    def to_metadata(self) -> vz.Metadata:
        """As metadata of a Vizier study."""
        metadata = vz.Metadata()
        metadata.ns(NAMESPACE).update(
            format=_FORMAT,
            experiment=self.experiment,
            dna_spec=self.spec,
            algorithm=self.algorithm,
            seed=str(self.seed),
            data=json.dumps(self.data, sort_keys=True),
        )
        return metadata

    @classmethod
    def from_metadata(cls, metadata: vz.Metadata) -> 'StudyRecord':
        """From metadata of a Vizier study.

        Raises:
            UserError: the study was made by another program, or another version of this one.
        """
        own: Any = metadata.ns(NAMESPACE)
        if own.get('format') != _FORMAT:
            raise UserError(
                'The study was not made by this version of paxtune: it has format '
                f'{own.get("format")}, {_FORMAT} was expected.'
            )
        return cls(
            experiment=own['experiment'],
            spec=own['dna_spec'],
            algorithm=own['algorithm'],
            seed=int(own['seed']),
            data=json.loads(own['data']),
        )


def refuse_changes(stored: StudyRecord, now: StudyRecord, directory: Path) -> None:
    """Compares the study that is in a directory with the one that was asked for.

    Raises:
        UserError: the experiments differ in more than `search.num_trials`, or the data differ.
    """
    if stored.experiment != now.experiment:
        asked = from_json_text(now.experiment, Component, source='the experiment')
        there = from_json_text(stored.experiment, Component, source=f'the study in {directory}')
        there.rebind({'search.num_trials': asked.search.num_trials}, raise_on_no_change=False)
        # Compared as text: a study that an older version wrote lacks what has a default now.
        if to_json_text(there) != now.experiment:
            raise UserError(
                f'{directory} holds a study of another experiment. There, and now:\n'
                + '\n'.join(_differences(pg.diff(there, asked)))
                + '\nUse another --job_log_dir for the changed experiment.'
            )
    for name in sorted({*stored.data, *now.data}):
        before, after = stored.data.get(name), now.data.get(name)
        if before != after:
            raise UserError(
                f'{directory} holds a study of other data: the fingerprint of {name} was {before} '
                f'there, and is {after} now. Use another --job_log_dir for the changed data.'
            )


def _differences(diff: pg.Diff, path: pg.KeyPath | None = None) -> Iterator[str]:
    # `pg.diff(…, flatten=True)` would do, but raises where objects in a list differ.
    if diff.is_leaf:
        yield f'  {path}: {short(diff.left)} → {short(diff.right)}'
        return
    for name, child in diff.children.items():
        key = int(name) if diff.left is pg.List else name
        yield from _differences(child, pg.KeyPath(key, path))
