import functools
from collections.abc import Callable, Mapping

from absl import logging

from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.running.runner import Refusal, Reports, Runner, Running
from paxtune.running.trial_errors import ends_as_errors, guarded
from paxtune.running.trial_json import REMEDY, OtherTrialError, require_no_link
from paxtune.running.trial_spec import PreparedTrial, TrialSpec, experiments
from paxtune.study.record import REPLICATE
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import attempt_directory
from trainer.checkpoints import experiment_record
from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.loop.decode_loop import OUTPUTS
from trainer.loop.train_loop import run
from trainer.program import compile_events
from trainer.program.packing.place import Alone
from trainer.program.setup import compiled
from trainer.runtime.directory import JobPath
from trainer.runtime.wall_clock import INITIALIZATION, during
from trainer.symbolic.errors import UserError
from trainer.warm_start.warm_start import WarmStartLoader, warm_start_sources


class ExperimentRunner(Runner):
    """Trains a trial's experiment, or its sub-experiments one after another."""

    def __init__(self, train: Callable[..., Reports] = run) -> None:
        """Makes a runner; `train` trains one experiment, as `train_loop.run`."""
        self._run = train

    @during(INITIALIZATION)
    @ends_as_errors()
    def prepare(self, study: Study, trial: RunningTrial) -> Running | Refusal:
        compile_events.listen()
        parts = experiments(study, trial.view)
        _require_own_experiments(study, trial.view, parts)
        if not _has_warm_start(study, trial, parts):
            parts = experiments(study, trial.view)
        prepared = self._prepare(TrialSpec.of(study, trial.view), parts, study.search)
        trial.set_costs(prepared.costs.measured)
        if prepared.costs.refusal is not None:
            return Refusal(prepared.costs.refusal)
        return functools.partial(self._train, prepared)

    def _prepare(
        self, spec: TrialSpec, parts: Mapping[str, Tunable], search: Search
    ) -> PreparedTrial:
        return spec.prepared(parts, search)

    def _train(self, prepared: PreparedTrial, should_interrupt: Callable[[], bool]) -> Reports:
        return guarded(prepared.train(should_interrupt, self._run))

    @property
    def num_devices(self) -> int:
        import jax

        return jax.device_count()


def runner_in(lane: Alone) -> ExperimentRunner:
    """Makes a runner that does the train steps of its trials in a lane."""
    return ExperimentRunner(functools.partial(run, place=lane))


def _require_own_experiments(study: Study, trial: Trial, parts: Mapping[str, Tunable]) -> None:
    """Checks the directories whose checkpoints a trial begins with; raises OtherTrialError."""
    fork, warm_start = trial.lineage.forked_from, trial.lineage.warm_start
    numbers = [fork[0] if fork else None, warm_start]
    sources = [study.trial(number) for number in numbers if number is not None]
    checked = [(trial, parts), *((each, experiments(study, each)) for each in sources)]
    for each, parts in checked:
        for number in range(1, each.attempt + 1):
            directory = attempt_directory(study.directory, each, number)
            for name, part in parts.items():
                _require_own_experiment(study, directory / name, each, part)


def _require_own_experiment(study: Study, directory: JobPath, trial: Trial, part: Tunable) -> None:
    """Checks that `experiment.json`, if there is one, is the experiment of this trial.

    Raises:
        OtherTrialError: lists the differences, or names a symbolic link.
    """
    decoded = (f'{OUTPUTS}/{name}' for name in part.decode_inputs)
    written = (directory / name for name in ('checkpoints', 'summaries', *decoded))
    require_no_link(study.directory, *written)
    has_record = (directory / experiment_record.FILE).exists()
    if not has_record and newest_checkpoint(directory / 'checkpoints') is None:
        return  # Nothing of a run is here, and the text of an experiment takes milliseconds.
    found = [
        change
        for change in experiment_record.changes(directory, experiment_record.recorded(part))
        # The path of a trial changes with the path of the study.
        if not change.path.startswith('train.init_from_checkpoint')
    ]
    if found:
        raise OtherTrialError(
            f'{directory} holds another experiment than that of trial {trial.id}. There, and in '
            f'the trial:\n' + '\n'.join(map(str, found)) + f'\n{REMEDY}'
        )


def _has_warm_start(study: Study, trial: RunningTrial, parts: Mapping[str, Tunable]) -> bool:
    """Records the actual start of a trial before its first step: all attempts use the record.

    Returns:
        False if it begins from scratch: its parent's weights are missing or do not fit.
    """
    view, warm_start = trial.view, trial.lineage.warm_start
    if warm_start is None or trial.lineage.origin not in ('algorithm', REPLICATE):
        return True
    attempts = [attempt_directory(study.directory, view, n + 1) for n in range(view.attempt)]
    if any((each / name / experiment_record.FILE).exists() for each in attempts for name in parts):
        return True
    try:
        for name, part in parts.items():
            if sources := warm_start_sources(part, attempts[-1] / name):
                WarmStartLoader(part, sources, compiled(part)[0])
    except UserError as error:
        logging.warning(
            'Trial %d does not begin with the weights of trial %d: %s', view.id, warm_start, error
        )
        trial.set_warm_start(None)
        return False
    parent = study.trial(warm_start)
    newest = newest_checkpoint(
        attempt_directory(study.directory, parent) / next(iter(parts)) / 'checkpoints'
    )
    if newest is not None:
        trial.set_warm_start(parent.id, int(newest.name))
    return True
