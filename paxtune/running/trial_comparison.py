"""Comparison of a trial that is trained again with its record."""

import dataclasses
from collections.abc import Mapping, Sequence

from paxtune.experiment import Tunable
from paxtune.objectives.metrics import join_name, split_name
from paxtune.running import trial_json
from paxtune.study import code_versions
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import trial_directory
from trainer.runtime.throughput import THROUGHPUT_METRICS


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """The metrics of a run of a trial, as the study recorded them.

    Attributes:
        trial: the number of the trial.
        metrics: by step, then by name.
        first: names to compare before all others, such as the metric of the reward.
        cause: the probable cause of a difference.
    """

    trial: int
    metrics: Mapping[int, Mapping[str, float]]
    first: Sequence[str] = ()
    cause: str = ''

    @classmethod
    def of(
        cls, study: StudyView, trial: Trial, name: str, before: int, cause: str
    ) -> 'RecordedRun':
        """Takes the metrics of a run from a trial.

        Args:
            name: of the sub-experiment; '' without any.
            before: steps of the sub-experiments before it.
            cause: see `other_circumstances`.
        """
        rewarded = [metric.name for reward in study.rewards for metric in reward.metrics]
        metrics = {
            each.step - before: {
                split_name(metric)[0]: value
                for metric, value in each.metrics.items()
                if metric == join_name(split_name(metric)[0], name or None)
            }
            for each in trial.measurements
        }
        found = {step: each for step, each in metrics.items() if step > 0 and each}
        return cls(trial.id, found, [split_name(metric)[0] for metric in rewarded], cause)

    def difference(self, step: int, metrics: Mapping[str, float]) -> str:
        """Renders the largest difference of a step from the record; '' without any."""
        recorded = self.metrics.get(step, {})
        found = [
            (
                name not in self.first,
                name.startswith('train/'),
                -_distance(value, metrics[name]),
                name,
            )
            for name, value in recorded.items()
            if '/' in name and name not in THROUGHPUT_METRICS and name in metrics
            if f'{value:.6g}' != f'{metrics[name]:.6g}'
        ]
        if not found:
            return ''
        name = min(found)[-1]
        rendered = [f'{each:.4g}' for each in (recorded[name], metrics[name])]
        if rendered[0] == rendered[1]:
            rendered = [f'{each:.6g}' for each in (recorded[name], metrics[name])]
        where = f'differs from trial {self.trial} at step {step}'
        return f'{where}: {name} {" → ".join(rendered)}; {self.cause}'


def other_circumstances(
    study: StudyView, trial: Trial, parts: Mapping[str, Tunable]
) -> tuple[list[str], str]:
    """Compares the code and the threads of this process with those that trained a trial.

    Args:
        parts: the experiments of the trial, by sub-experiment.

    Returns:
        Warnings; the probable cause of other metrics.
    """
    # The search itself has no part in a trial.
    fields = [(name, field) for part in parts.values() for name, field in part.sym_items()]
    trained = [*map(type, parts.values()), *(field for name, field in fields if name != 'search')]
    before, now = code_versions.of_trial(study.record, trial.id), code_versions.current(*trained)
    warnings, cause = [], 'the code may have changed'
    if names := code_versions.changed(before, now):
        cause = f'the code of {code_versions.named(names)} has changed'
        warnings = [f'{cause} since trial {trial.id} began: its metrics may differ']
    record, here = (
        trial_json.read(trial_directory(study.directory, trial)),
        trial_json.num_threads(),
    )
    if record is not None and (there := record['machine']['threads']) != here:
        warnings.append(
            f'trial {trial.id} was trained with {there} threads, and there are {here} here: the '
            'last bits of its metrics may differ'
        )
        cause += '' if names else ', or the number of threads matters'
    return warnings, cause


def _distance(before: float, now: float) -> float:
    return abs(now - before) / max(abs(before), abs(now)) if now == now else 1.0
