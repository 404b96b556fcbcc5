"""TensorBoard's HParams tab: the decisions, the rewards and the metrics of trials.

The directory of a study has the domains of its decisions and the names of its metrics. Each trial
is one session, in the trial's own directory, whatever the number of its attempts.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyglove as pg
from absl import logging
from tensorboardX.proto import api_pb2, plugin_hparams_pb2, summary_pb2
from tensorboardX.summary import scalar

from paxtune.objectives.measurement import Measurement
from paxtune.search_space.decisions import decision_points, slots
from paxtune.search_space.labels import parameter_path
from paxtune.search_space.space import Space
from paxtune.study.columns import reward_columns
from paxtune.study.record import Status
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from trainer.runtime.directory import JobPath
from trainer.runtime.event_file import EventFile, event_path, replace_event_file
from trainer.symbolic.errors import is_disk_full

FILE = 'events.out.tfevents.0.hparams'
"""Name of the file in the directory of a study."""

START = 'events.out.tfevents.0.start'
"""Name of the file with the decisions of a trial; other files sort after it."""

_API: Any = api_pb2  # Generated code makes its classes at import.
_PLUGIN: Any = plugin_hparams_pb2
_SUMMARY: Any = summary_pb2
_FLUSH_SECONDS = 10.0


class HParams:
    """Writes the decisions and metrics by which TensorBoard compares the trials of a study.

    A failure is only a warning, since the study has all of the data.
    """

    def __init__(self, study: StudyView) -> None:
        """Prepares for the trials of a study that has a directory."""
        self._study = study
        self._has_warned = False
        self._infos: dict[str, Any] = {}
        with self.going_on(study.directory):
            self._infos = hparam_infos(study.space)
        self._rewards = [f'reward/{name}' for name in reward_columns(study.rewards)]
        self._metrics: set[str] = set()

    def session(self, trial: Trial) -> 'Session':
        """Begins or continues the session of a trial."""
        directory = trial.directory
        assert directory is not None
        start = directory / START
        with self.going_on(start):
            if not start.exists():
                info = self._start(trial, directory)
                replace_event_file(start, _summary('session_start_info', info))
        return Session(directory, self)

    def values(self, measurement: Measurement) -> dict[str, float]:
        """Returns the values of a measurement by their tags, and lists new metrics in the study."""
        if missing := measurement.metrics.keys() - self._metrics:
            known = {name for trial in self._study.trials for name in trial.metrics}
            self._metrics |= missing | known
            with self.going_on(self._study.directory):
                self._write_experiment()
        rewards = dict(zip(self._rewards, measurement.rewards, strict=False))
        return rewards | {f'trial/{name}': value for name, value in measurement.metrics.items()}

    @contextlib.contextmanager
    def going_on(self, path: JobPath | None) -> Iterator[None]:
        """Goes on after an error. The first one is a warning, unless the disk is full."""
        try:
            yield
        except Exception as error:
            is_minor = self._has_warned or is_disk_full(error)
            self._has_warned |= not is_minor
            level = logging.INFO if is_minor else logging.WARNING
            text = '%s: HParams were not written: %s: %s'
            logging.log(level, text, path, type(error).__name__, error)

    def _write_experiment(self) -> None:
        labels = self._rewards if len(self._rewards) > 1 else ['reward']
        names = zip(self._rewards, labels[: len(self._rewards)], strict=True)
        metrics = [*names, *((f'trial/{name}', name) for name in sorted(self._metrics))]
        assert self._study.directory is not None
        experiment = _API.Experiment(
            description=self._study.record.exp,
            hparam_infos=self._infos.values(),
            metric_infos=[
                _API.MetricInfo(name=_API.MetricName(tag=_tag(name)), display_name=label)
                for name, label in metrics
            ],
        )
        path = self._study.directory / FILE
        replace_event_file(path, _summary('experiment', experiment))

    def _start(self, trial: Trial, directory: JobPath) -> Any:
        start = _PLUGIN.SessionStartInfo(start_time_secs=time.time(), model_uri=str(directory))
        for path, value in trial.decisions.items():
            if self._infos[path].type == _API.DATA_TYPE_FLOAT64:
                start.hparams[path].number_value = value
            elif self._infos[path].type == _API.DATA_TYPE_BOOL:
                start.hparams[path].bool_value = value
            else:
                start.hparams[path].string_value = str(value)
        return start


class Session:
    """The session of one trial: one file of each process that runs it."""

    def __init__(self, directory: JobPath, hparams: HParams) -> None:
        """Not called directly: see `HParams.session`."""
        self._directory, self._hparams = directory, hparams
        self._file: EventFile | None = None
        self._flushed = time.monotonic()

    def measured(self, measurement: Measurement) -> None:
        """Writes the rewards and the metrics of a step."""
        with self._hparams.going_on(self._directory):
            self._write(_scalars(self._hparams.values(measurement)), measurement.step)
            if self._file is not None and time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self._flushed = time.monotonic()
                self._file.flush()

    def close(self, trial: Trial) -> None:
        """Closes the file. A trial that has ended gets its final values and its status."""
        with self._hparams.going_on(self._directory):
            if trial.is_terminal:
                self._end(trial)
        if self._file is not None:
            with self._hparams.going_on(self._directory):
                self._file.close()

    def _end(self, trial: Trial) -> None:
        last = max([0, *(each.step for each in trial.measurements)])
        if trial.final is not None:
            self._write(_scalars(self._hparams.values(trial.final)), last)
        is_failure = trial.status is Status.INFEASIBLE
        status = _API.STATUS_FAILURE if is_failure else _API.STATUS_SUCCESS
        ended = time.time() if trial.completed is None else trial.completed.timestamp()
        info = _PLUGIN.SessionEndInfo(status=status, end_time_secs=ended)
        self._write(_summary('session_end_info', info), last)

    def _write(self, summary: Any, step: int) -> None:
        if self._file is None:
            self._file = EventFile(event_path(self._directory, f'{time.time_ns()}'))
        self._file.summary(summary, step)


def hparam_infos(space: Space) -> dict[str, Any]:
    """Describes the decisions of a space, each by its path."""
    legal: dict[str, list[tuple[float, float] | list[Any]]] = {}
    for point in decision_points(space.spec):
        for slot in slots(point):
            is_range = isinstance(slot, pg.geno.Float)
            here = (slot.min_value, slot.max_value) if is_range else space.candidate_names(slot)
            legal.setdefault(parameter_path(slot.id.path), []).append(here)
    return {path: _info(path, domains) for path, domains in legal.items()}


def _info(path: str, domains: Iterable[tuple[float, float] | list[Any]]) -> Any:
    """Describes a path, at which several decisions may stand under different conditions."""
    values = list(dict.fromkeys((type(each), each) for domain in domains for each in domain))
    kinds, names = {kind for kind, _ in values}, [value for _, value in values]
    info = _API.HParamInfo(name=path, type=_API.DATA_TYPE_STRING)
    if kinds <= {int, float}:
        info.type = _API.DATA_TYPE_FLOAT64
        if any(isinstance(domain, tuple) for domain in domains):
            info.domain_interval.min_value, info.domain_interval.max_value = min(names), max(names)
        else:
            info.domain_discrete.extend(names)
    elif kinds == {bool}:
        info.type = _API.DATA_TYPE_BOOL
        info.domain_discrete.extend(names)
    elif not any(isinstance(domain, tuple) for domain in domains):
        info.domain_discrete.extend(map(str, names))
    return info


def _summary(kind: str, message: Any) -> Any:
    content = _PLUGIN.HParamsPluginData(**{kind: message}).SerializeToString()
    plugin = _SUMMARY.SummaryMetadata.PluginData(plugin_name='hparams', content=content)
    metadata = _SUMMARY.SummaryMetadata(plugin_data=plugin)
    value = _SUMMARY.Summary.Value(tag=f'_hparams_/{kind}', metadata=metadata)
    return _SUMMARY.Summary(value=[value])


def _scalars(values: Mapping[str, float]) -> Any:
    made = [scalar(name, value).value[0] for name, value in values.items()]
    return _SUMMARY.Summary(value=made)


def _tag(name: str) -> str:
    """Returns the tag that a scalar of this name has."""
    return str(scalar(name, 0.0).value[0].tag)
