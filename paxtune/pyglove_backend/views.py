import collections
import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

import pyglove as pg

from paxtune.objectives.measurement import Measurement
from paxtune.search_space.decisions import to_dna
from paxtune.study.record import Status, TrialRecord
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import from_json_text

LINK, DNA_METADATA = 'link:', 'dna_metadata'
"""Items of a trial's memo: the prefix of links, and the metadata of its DNA."""

_STATUS = {
    'REQUESTED': 'REQUESTED',
    'ACTIVE': 'PENDING',
    'COMPLETED': 'COMPLETED',
    'INFEASIBLE': 'COMPLETED',
}
_VALUE = 'value'


def to_text(value: Any, what: str) -> str:
    """Metadata as JSON. Tuples become lists.

    Args:
        value: plain data, or components, or containers of them.
        what: its name for messages.

    Raises:
        UserError: the value could not be read back without running code of a file.
    """
    text = json.dumps({_VALUE: _without_tuples(pg.to_json(value))})
    try:
        from_json_text(text, object)
    except UserError as error:
        raise UserError(
            f'{what}: a paxtune study keeps plain data and components, so that reading it runs '
            f'nothing. This value could not be read back: {error}'
        ) from error
    return text


def from_text(text: str) -> Any:
    """Decodes the output of `to_text`. Returns any other text unchanged."""
    if not text.startswith(f'{{"{_VALUE}": '):
        return text
    return from_json_text(text, pg.Dict, 'metadata of a study').pop(_VALUE)


def _without_tuples(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _without_tuples(child) for name, child in tree.items()}
    if isinstance(tree, list):
        is_tuple = tree[:1] == [pg.JSONConvertible.TUPLE_MARKER]
        return [_without_tuples(child) for child in tree[1 if is_tuple else 0 :]]
    return tree


def read_metadata(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Reads the metadata of a study or a trial."""
    return {key: from_text(text) for key, text in metadata.items()}


def is_active(study: Study) -> bool:
    """Returns True if there may be another trial: the study is neither ended nor to pause."""
    record = study.store.study()
    return record is not None and not record.is_ended and not record.pause_requested


class View:
    """Shows the trials of a study as PyGlove's tuning API does.

    Attributes:
        spec: the space that DNAs refer to.
        objectives: the metrics that are optimized, 'reward' for the reward itself.
    """

    def __init__(self, study: Study, spec: pg.DNASpec | None = None) -> None:
        """Makes a view.

        Args:
            spec: the space, as `pg.sample` made it; None for the study's, which lacks some fields.
        """
        self.study, self.spec = study, study.space.spec if spec is None else spec
        self.objectives = [m.name for reward in study.search.rewards for m in reward.metrics]
        self._only = self.objectives[0] if len(self.objectives) == 1 else None

    def trials(self) -> list[Any]:
        """Returns all trials as `pg.tuning.Trial`, by id, as they stand now."""
        return [self.trial(record) for record in self.study.store.trials()]

    def trial(self, record: TrialRecord) -> Any:
        """Shows a trial as a `pg.tuning.Trial`."""
        trial = Trial(record, self.study.context)
        infeasible = record.status is Status.INFEASIBLE
        of_links = [item for item in record.memo.items() if item[0].startswith(LINK)]
        final = None
        if infeasible:
            final = pg.tuning.Measurement(step=0, elapse_secs=0.0, reward=0.0)
        elif record.final is not None:
            final = self._measurement(record.final)
        return pg.tuning.Trial(
            id=trial.id,
            dna=self.dna(record),
            status=_STATUS[trial.state],
            final_measurement=final,
            infeasible=infeasible,
            measurements=[self._measurement(each) for each in record.measurements],
            metadata=read_metadata(record.metadata),
            related_links={key.removeprefix(LINK): url for key, url in of_links},
            created_time=int(trial.created.timestamp()),
            completed_time=int(trial.completed.timestamp()) if trial.completed else None,
        )

    def dna(self, record: TrialRecord) -> pg.DNA:
        """Returns the DNA of a trial as it was proposed, with its metadata."""
        by_id = Trial(record, self.study.context).by_id
        dna = to_dna(self.study.space.spec, by_id).use_spec(self.spec)
        if (text := record.memo.get(DNA_METADATA)) is not None:
            for key, value in from_text(text).items():
                dna.set_metadata(key, value)
        return dna

    def _measurement(self, measurement: Measurement) -> Any:
        # A missing optimized metric was not finite.
        metrics: dict[Any, float] = dict.fromkeys(self.objectives, math.nan)
        metrics |= measurement.metrics
        is_metric = self._only not in (None, 'reward')
        return pg.tuning.Measurement(
            step=measurement.step,
            elapse_secs=measurement.elapsed_seconds,
            reward=metrics[self._only] if is_metric else metrics.pop('reward', None),
            metrics=metrics,
            checkpoint_path=measurement.checkpoint,
        )


class SamplingResult(pg.tuning.Result):
    """A result of `pg.poll_result`: each read returns the present state of the study."""

    def __init__(self, name: str, study: Study, lock: Any, owner: object = None) -> None:
        """Shows a study.

        The lock is held while the study is read. The owner lives as long as the result, and with
        it the study stays open.
        """
        super().__init__()
        self._name, self._study, self._lock, self._owner = name, study, lock, owner
        self._view = View(study)

    @property
    def metadata(self) -> dict[str, Any]:
        with self._lock:
            return read_metadata(self._study.record.metadata)

    @property
    def is_active(self) -> bool:
        with self._lock:
            return is_active(self._study)

    @property
    def last_updated(self) -> datetime.datetime | None:
        with self._lock:
            return max(filter(None, (t.completed for t in self._study.trials)), default=None)

    @property
    def trials(self) -> list[Any]:
        with self._lock:
            return self._view.trials()

    @property
    def best_trial(self) -> Any:
        """The trial with the largest reward; None without one, and with several objectives."""
        with self._lock:
            if len(self._study.search.rewards) > 1 or (best := self._study.best) is None:
                return None
            return self._view.trial(best.record)

    def format(
        self, compact: bool = False, verbose: bool = True, root_indent: int = 0, **kwargs: Any
    ) -> str:
        with self._lock:
            states = collections.Counter(_STATUS[t.state] for t in self._study.trials)
            infeasible = sum(t.state == 'INFEASIBLE' for t in self._study.trials)
        count = states.total()
        fields: dict[str, Any] = {
            'name': self._name,
            'status': {
                status: f'{states[status]}/{count}'
                for status in ('REQUESTED', 'PENDING', 'COMPLETED')
                if states[status]
            },
        }
        if infeasible:
            fields['infeasible'] = f'{infeasible}/{count}'
        if (best := self.best_trial) is not None:
            fields['best_trial'] = {
                'id': best.id,
                'reward': best.final_measurement.reward,
                'step': best.final_measurement.step,
                'dna': best.dna.format(compact=True),
            }
        return pg.format(fields, compact, False, root_indent, **kwargs)
