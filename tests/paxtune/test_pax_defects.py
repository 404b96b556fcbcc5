"""Pax's verified defects of tuning do not occur here. `docs/pax-parity.md` lists them by number."""

import collections
import gc
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pyglove as pg
import pytest

from paxtune.algorithms import Grid, RandomSearch, RegularizedEvolution
from paxtune.api import prepared_data, tune
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.aggregation import MeanOfSteps
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward, Reward
from paxtune.running.callbacks import Callback
from paxtune.running.runners import experiments
from paxtune.schedulers import RankStopping, Scheduler, ThresholdStopping
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.trial_experiments import parts_of
from paxtune.study.trial_paths import trial_directory
from tests.paxtune import tunables
from tests.paxtune.studies import ask
from tests.trainer.tiny import CountingInput, experiment
from trainer.inputs.base import Batch
from trainer.layers import FeedForward
from trainer.loop.train_loop import run
from trainer.program.setup import compiled
from trainer.runtime.signals import SkipTrial, StopTrial
from trainer.symbolic.component import Component
from trainer.symbolic.derived import derived
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import from_json_text
from trainer.tasks import LanguageModelTask


def rates(num_trials: int = 2, **changes: Any) -> Tunable:
    """A tiny experiment whose learning rate is searched; dots in paths are written as `__`."""
    made = tunables.Rates()
    paths = {path.replace('__', '.'): value for path, value in changes.items()}
    return made.rebind({'search.budget.trials': num_trials, **paths}, raise_on_no_change=False)


def states(study: Study) -> list[str]:
    return [trial.state for trial in study.trials]


# --- Every trial that is handed out ends, once ---


@pytest.mark.slow
@pytest.mark.parametrize('is_reported', [False, True])
@pytest.mark.sentinel
def test_a_trial_that_was_trained_to_its_end_completes_after_a_kill(
    tmp_path: Path, is_reported: bool
) -> None:
    # 1, 12: the newest checkpoint is that of the last step, and the evaluation there was done.
    with tune(rates(), job_log_dir=tmp_path / 'whole') as study:
        wanted = [trial.reward for trial in study.trials]
    with open_study(tmp_path / 'parts', rates(), prepared_data(Space(rates()))) as study:
        trial = ask(study)
        (made,) = experiments(study, trial).values()
        for each in run(made, trial_directory(study.directory, trial)):
            if is_reported:
                trial.report(each.step, each.metrics, each.checkpoint)
    with tune(rates(), job_log_dir=tmp_path / 'parts') as study:
        assert states(study) == ['COMPLETED'] * 2
        assert [trial.reward for trial in study.trials] == wanted
        steps = [[each.step for each in trial.measurements] for trial in study.trials]
        assert steps == [[2, 4, 6] if is_reported else [6], [2, 4, 6]]


def test_a_trial_that_measures_nothing_ends_and_is_not_handed_out_again() -> None:
    # 1, 13: nothing was measured that final metrics could be made of.
    calls: list[int] = []
    space = {'x': pg.oneof([0, 1, 2, 3])}
    with tune(lambda values: calls.append(values.x), space=space, objective='minimize') as study:
        assert states(study) == ['INFEASIBLE'] * 4
        assert sorted(calls) == [0, 1, 2, 3]
        assert 'nothing was measured' in str(study.trials[0].infeasible_reason)


_KILLED_WHILE_WRITING = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute('PRAGMA cache_size = 1')  # What is written goes to the disk at once.
connection.execute('BEGIN IMMEDIATE')
connection.execute('DELETE FROM trials')
connection.execute('CREATE TABLE large AS SELECT zeroblob(1000000)')
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_study_whose_process_died_while_writing_can_be_read(tmp_path: Path) -> None:
    # 2
    space = {'x': pg.oneof([0, 1, 2])}
    with tune(lambda v: v.x, space=space, objective='minimize', job_log_dir=tmp_path) as study:
        wanted = [trial.reward for trial in study.trials]
    command = [sys.executable, '-c', _KILLED_WHILE_WRITING, str(tmp_path / 'study.db')]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / 'study.db-journal').exists()
    with load_study(tmp_path) as study:
        assert [trial.reward for trial in study.trials] == wanted
        with pytest.raises(UserError, match='opened to be read only'):
            study.open_trial(1).set_metadata({'a': 'b'})


def test_processes_that_cannot_talk_are_refused_before_the_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1: Pax hangs there. Those that were started together are in test_processes.py.
    monkeypatch.setattr(jax, 'process_count', lambda: 2)
    with pytest.raises(UserError, match='2 processes share their devices, but cannot'):
        tune(rates(), job_log_dir=tmp_path)
    assert not (tmp_path / 'study.db').exists()


# --- Sub-experiments ---


@pytest.mark.parametrize('order', [['short', 'long'], ['long', 'short']])
def test_a_sum_over_sub_experiments_of_unequal_length_counts_each(order: list[str]) -> None:
    # 4
    total = MetricReward('minimize', Metric('loss', aggregator='sum'))
    made = rates(1, search__objective=total, sub_experiments={name: {} for name in order})
    with open_study(None, made) as study:
        trial, losses = ask(study), {'short': [5.0], 'long': [4.0, 3.0]}
        for name in order:
            for loss in losses[name]:
                trial.report(trial.step + 2, {f'loss:{name}': loss})
        trial.complete()
        assert trial.reward == 5.0 + 3.0
        assert trial.metrics == {'loss:short': 5.0, 'loss:long': 3.0}


def test_a_sub_experiment_may_scale_what_is_searched() -> None:
    rate = 'task.learner.learning_rate'
    made = rates(
        shared={'rate': pg.floatv(1e-3, 1e-1, 'log')},
        sub_experiments={f'{n}x': {rate: derived(f'shared.rate * {n}')} for n in (1, 2, 4, 8)},
    )
    made.rebind({rate: derived('shared.rate')})
    space = Space(made)
    parts = parts_of(space, space.parse({'shared.rate': 0.01}))
    learning_rates = [part.task.learner.learning_rate for part in parts.values()]
    assert learning_rates == [0.01, 0.02, 0.04, 0.08]


# --- Errors and signals ---


class Checked(Component):
    """A component whose `check` raises for one value."""

    how: str

    def check(self) -> None:
        if self.how == 'bug':
            raise RuntimeError('a bug')
        if self.how == 'skip':
            raise SkipTrial('not this one')


@pytest.mark.parametrize('algorithm', [RandomSearch(), RegularizedEvolution(2, 1)])
def test_an_error_in_a_check_ends_no_study(algorithm: Any) -> None:
    # 5: a bug is an error of its trial; what is refused with a reason is not suggested at all.
    space = {'part': Checked(pg.oneof(['bug', 'skip', 'good']))}
    with tune(lambda values: 1.0, space=space, algorithm=algorithm, objective='minimize') as study:
        ended = {trial.decisions['part.how']: trial for trial in study.trials}
        assert ended.keys() == {'bug', 'good'}
        assert ended['good'].state == 'COMPLETED'
        assert ended['bug'].infeasible_reason == 'RuntimeError: a bug'
        assert ended['bug'].is_failed


class SignalInput(CountingInput):
    """Raises a signal instead of a batch, or before there is any."""

    signal: str
    is_early: bool = False
    at_batch: int = 1

    def prepare(self) -> None:
        if self.is_early:
            raise made_signal(self.signal)

    def get_next(self) -> Batch:
        if self._batch == self.at_batch:
            raise made_signal(self.signal)
        return super().get_next()


class SignalTask(LanguageModelTask):
    """Raises a signal while a step is traced."""

    signal: str = 'stop'

    def measure(self, outputs: Any, batch: Any) -> Any:
        raise made_signal(self.signal)


class SignalLayer(FeedForward):
    """Raises a signal while it is traced."""

    signal: str = 'stop'

    def forward(self, *args: Any) -> Any:
        raise made_signal(self.signal)


def made_signal(kind: str) -> Exception:
    return StopTrial('enough', reward=0.5) if kind == 'stop' else SkipTrial('no use')


def in_layer(signal: str) -> Tunable:
    return rates(task__model__stack__layers=[SignalLayer(32, signal=signal)])


def in_task(signal: str) -> Tunable:
    task = rates().task
    return rates(task=SignalTask(task.model, task.learner, signal=signal))


def in_training_input(signal: str) -> Tunable:
    return rates(train_input=SignalInput(batch_size=8, is_training=True, signal=signal))


def before_the_first_batch(signal: str) -> Tunable:
    data = SignalInput(batch_size=8, is_training=True, signal=signal, is_early=True)
    return rates(train_input=data)


def in_evaluation(signal: str) -> Tunable:
    return rates(eval_inputs={'eval': SignalInput(batch_size=8, signal=signal)})


@pytest.mark.parametrize('signal', ['stop', 'skip'])
@pytest.mark.parametrize(
    'make',
    [
        in_layer,
        in_task,
        pytest.param(in_training_input, marks=pytest.mark.slow),
        before_the_first_batch,
        pytest.param(in_evaluation, marks=pytest.mark.slow),
    ],
)
@pytest.mark.fast(1)
def test_a_signal_from_anywhere_ends_its_trial_and_not_the_study(
    make: Callable[[str], Tunable], signal: str, tmp_path: Path
) -> None:
    # 6
    with tune(make(signal), job_log_dir=tmp_path) as study:
        outcomes = [(trial.state, trial.reward, trial.reason) for trial in study.trials]
        if signal == 'stop':
            assert outcomes == [('COMPLETED', 0.5, 'enough')] * 2
        else:
            assert outcomes == [('INFEASIBLE', None, 'no use')] * 2
        assert not any(trial.is_failed for trial in study.trials)


@pytest.mark.slow
def test_a_signal_in_one_sub_experiment_leaves_out_the_others(tmp_path: Path) -> None:
    stops = SignalInput(batch_size=8, is_training=True, signal='stop')
    changes = {'first': {'train_input': stops}, 'second': {}}
    with tune(rates(1, sub_experiments=changes), job_log_dir=tmp_path) as study:
        (trial,) = study.trials
        assert (trial.state, trial.reward) == ('COMPLETED', 0.5)
        assert not (trial_directory(study.directory, trial) / 'second').exists()


# --- What trials leave behind ---


class Left(Callback):
    """Keeps what of the process is in use while trials run, and when they end."""

    def __init__(self) -> None:
        self.arrays: list[int] = []
        self.files: list[int] = []
        self.threads: list[int] = []

    def on_measurement(self, study: Study, trial: Trial, measurement: Measurement) -> None:
        if measurement.step == 2:
            self.arrays.append(sum(array.nbytes for array in jax.live_arrays()))

    def on_trial_end(self, study: Study, trial: Trial) -> None:
        gc.collect()
        self.files.append(len(os.listdir('/dev/fd')))
        self.threads.append(threading.active_count())


class Breaking(CountingInput):
    """Has no fifth batch, and says so as no input should."""

    def get_next(self) -> Batch:
        if self._batch == 4:
            raise KeyError('a bug')
        return super().get_next()


@pytest.mark.slow
@pytest.mark.parametrize('kind', [CountingInput, Breaking])
def test_trials_leave_no_arrays_files_or_threads_behind(
    kind: type[CountingInput], tmp_path: Path
) -> None:
    # 5, 17
    left, num_trials = Left(), 5
    made = rates(num_trials, train_input=kind(batch_size=8, is_training=True))
    with tune(made, job_log_dir=tmp_path, callbacks=[left]) as study:
        ended = 'INFEASIBLE' if kind is Breaking else 'COMPLETED'
        assert states(study) == [ended] * num_trials
    assert len(left.arrays) == len(left.files) == num_trials
    # What one trial holds is more than half of what all hold together, and so on.
    assert max(left.arrays) < 2 * left.arrays[0]
    assert left.files[-1] < left.files[0] + num_trials
    assert left.threads[-1] < left.threads[0] + num_trials


@pytest.mark.slow
def test_programs_that_are_not_used_any_more_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    # 17
    monkeypatch.setattr('trainer.program.program._programs', collections.OrderedDict())
    monkeypatch.setattr('trainer.program.program._KEPT_PROGRAMS', 2)

    def program(width: int) -> weakref.ref[Any]:
        made = experiment()
        made.rebind({'task.model.stack.layers[0].feed_forward.hidden_dims': width})
        return weakref.ref(compiled(made)[0])

    made = [program(width) for width in (4, 8, 12, 16)]
    gc.collect()
    assert [each() is not None for each in made] == [False, False, True, True]


# --- Spaces, names and metrics ---


def test_a_range_is_searched_by_default() -> None:
    # 7
    reward = MetricReward('minimize', 'objective')
    space = pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.floatv(1e-6, 1.0, 'log'))
    Search(reward, Budget(3)).algorithm.resolved(pg.dna_spec(space), 1).check_space(
        pg.dna_spec(space), 1
    )
    with tune(lambda v: v.x + v.y, space=space, num_trials=3, objective='minimize') as study:
        assert states(study) == ['COMPLETED'] * 3


def test_any_value_makes_a_directory(tmp_path: Path) -> None:
    # 8
    texts = ['x' * 300, 'a|b/c\\d\n"e"', '../..', 'naïve ✓', '']
    space = {'a_long_name_' * 10: pg.oneof(['y' * 300]), 'text': pg.oneof(texts)}
    with tune(lambda v: 1.0, space=space, objective='minimize', job_log_dir=tmp_path) as study:
        assert states(study) == ['COMPLETED'] * len(texts)
        directories = [trial_directory(study.directory, trial) for trial in study.trials]
        assert sorted(directories) == sorted((tmp_path / 'trials').iterdir())
        for trial, directory in zip(study.trials, directories, strict=True):
            assert re.fullmatch(r'[A-Za-z0-9._=+-]{4,80}', directory.name)
            record = json.loads((directory / 'trial.json').read_text())
            assert record['decisions'] == trial.decisions
        assert {trial.decisions['text'] for trial in study.trials} == {*texts}


@pytest.mark.parametrize(
    'metric',
    ['a+b/f1(@5).x', Metric('a+b/f1(@5).x'), Metric.eval('f1(@5).x', 'a+b')],
    ids=['name', 'metric', 'eval'],
)
def test_names_are_not_regular_expressions(metric: Any) -> None:
    # 9
    others = ('aab/f1(@5).x', 'a+b/f1@5.x', 'a+b/f1(@5)-x', 'A+B/F1(@5).X', 'a+b/f1(@5).xx')

    def measured(values: Any) -> dict[str, float]:
        return dict.fromkeys(others, -1.0) | {'a+b/f1(@5).x': float(values.x)}

    reward = MetricReward('maximize', metric)
    with tune(measured, space={'x': pg.oneof([1, 2])}, objective=reward) as study:
        assert sorted(trial.reward or 0.0 for trial in study.trials) == [1.0, 2.0]


@pytest.mark.slow
def test_a_reward_of_training_metrics_needs_no_evaluation(tmp_path: Path) -> None:
    # 10
    reward = MetricReward('minimize', Metric.train('loss'))
    made = rates(eval_inputs={}, search__objective=reward)
    with tune(made, job_log_dir=tmp_path) as study:
        for trial in study.trials:
            assert trial.reward == trial.metrics['train/loss']
            assert [each.step for each in trial.measurements] == [2, 4, 6]


def test_a_metric_may_have_any_name() -> None:
    # 10: in Pax, what is called `training_…` counts as a training metric.
    reward = MetricReward('minimize', 'training_cost')
    space = {'x': pg.oneof([1, 2])}
    with tune(lambda v: {'training_cost': v.x}, space=space, objective=reward) as study:
        assert study.best is not None
        assert study.best.reward == 1.0


@pytest.mark.slow
def test_a_measurement_names_the_checkpoint_of_its_step(tmp_path: Path) -> None:
    # 11
    made = rates(1, train__checkpoints__every=4)
    with tune(made, job_log_dir=tmp_path) as study:
        (trial,) = study.trials
        checkpoints = trial_directory(study.directory, trial) / 'checkpoints'
        found = {each.step: each.checkpoint for each in trial.measurements}
        assert found == {2: None, 4: str(checkpoints / '4'), 6: str(checkpoints / '6')}
        assert all(Path(each).is_dir() for each in found.values() if each)


# --- Numbers that are none ---


class Inverse(Reward):
    """One over a metric."""

    def compute(self, metrics: Any) -> float:
        return 1.0 / metrics['x'] if metrics['x'] else math.inf


def test_the_final_reward_is_checked_as_any_other() -> None:
    # 13: each step has a reward, and the mean of the steps has none.
    with open_study(
        None,
        pg.Dict(y=pg.oneof([1, 2])),
        search=Search(Inverse('maximize'), Budget(2), metric_aggregation=MeanOfSteps()),
    ) as study:
        for steps in ([1.0, -1.0], [2.0, 2.0]):
            trial = ask(study)
            for step, x in enumerate(steps, 1):
                trial.report(step, {'x': x})
            try:
                trial.complete()
            except Exception as error:
                assert 'the reward is inf' in str(error)
                trial.fail(str(error))
        assert states(study) == ['INFEASIBLE', 'COMPLETED']
        assert study.best is not None
        assert study.best.id == 2


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('goal', ['minimize', 'maximize'])
def test_a_reward_not_finite_is_infeasible_and_never_the_best(value: float, goal: str) -> None:
    # 13
    def measured(values: Any) -> float:
        return value if values.x == 1 else float(values.x)

    space, reward = {'x': pg.oneof([0, 1, 2])}, MetricReward(goal, 'objective')
    with tune(measured, space=space, objective=reward) as study:
        infeasible = [trial for trial in study.trials if trial.state == 'INFEASIBLE']
        assert [trial.decisions['x'] for trial in infeasible] == [1]
        assert study.best is not None
        assert study.best.reward == (0.0 if goal == 'minimize' else 2.0)


# --- Early stopping ---


@pytest.mark.parametrize(
    'scheduler',
    [
        ThresholdStopping(milestones=[[2, 2.5]]),
        ThresholdStopping(milestones=[[2, 2.5]], metric='y', goal='minimize'),
        RankStopping(milestones=[[2, 1, 1]]),
    ],
    ids=['value', 'metric', 'rank'],
)
def test_a_scheduler_stops_trials_at_its_milestone(scheduler: Scheduler) -> None:
    def measured(values: Any) -> Iterator[dict[str, float]]:
        for step in range(1, 5):
            yield {'objective': values.x + 4 - step, 'y': values.x + 4 - step}

    with tune(
        measured,
        space={'x': pg.oneof([0, 1, 2])},
        objective='minimize',
        algorithm=Grid(),
        scheduler=scheduler,
    ) as study:
        assert [trial.status for trial in study.trials] == ['completed', 'stopped', 'stopped']
        assert [len(trial.measurements) for trial in study.trials] == [4, 2, 2]
        assert [trial.reward for trial in study.trials] == [0.0, 3.0, 4.0]


def test_stopped_trials_tell_the_algorithm_what_they_were_worth() -> None:
    search = Search(
        MetricReward('minimize', 'loss'), Budget(3), RegularizedEvolution(2, tournament_size=2)
    )
    with open_study(None, pg.Dict(x=pg.floatv(0.0, 1.0)), search=search) as study:
        for loss in (2.0, 1.0):
            trial = ask(study)
            trial.report(1, {'loss': loss})
            trial.stop('no better')
        assert ask(study).lineage.parent == 2


# --- Steps ---


SPEED = MetricReward('maximize', Metric.train_steps_per_second())


@pytest.mark.slow
def test_a_reward_of_speed_needs_no_interval_to_fit(tmp_path: Path) -> None:
    # 15, 20
    made = rates(search__objective=SPEED, train__num_train_steps=5, train__summary_interval_steps=4)
    with tune(made, job_log_dir=tmp_path) as study:
        for trial in study.trials:
            assert [each.step for each in trial.measurements] == [2, 4, 5]
            assert all(each.rewards for each in trial.measurements)


@pytest.mark.slow
def test_a_trial_that_cannot_be_timed_any_more_ends_no_study(tmp_path: Path) -> None:
    # 15: killed between its last checkpoint and its report, it has no step left to time.
    made = rates(search__objective=SPEED, train__evaluation__every=6)
    with open_study(tmp_path, made, prepared_data(Space(made))) as study:
        trial = ask(study)
        (alone,) = experiments(study, trial).values()
        list(run(alone, trial_directory(study.directory, trial)))
    with tune(made, job_log_dir=tmp_path) as study:
        assert states(study) == ['INFEASIBLE', 'COMPLETED']
        assert "'train/steps_per_second' was not measured" in str(study.trials[0].reason)


@pytest.mark.slow
def test_a_trial_ends_with_its_very_last_step(tmp_path: Path) -> None:
    # 20: a run of 1050 steps with an evaluation every 100 is one of 5 with one every 2.
    made = rates(train__num_train_steps=5, train__checkpoints__every=2)
    with tune(made, job_log_dir=tmp_path) as study:
        for trial in study.trials:
            assert [each.step for each in trial.measurements] == [2, 4, 5]
            assert trial.final is not None
            assert trial.final.step == 5
            assert trial.reward == trial.measurements[-1].metrics['eval/log_pplx']


# --- Records ---


def test_a_trial_is_on_disk_whole_and_readable(tmp_path: Path) -> None:
    # 18: all metrics, also those that no reward is made of, and the experiment itself.
    with tune(rates(1), job_log_dir=tmp_path) as study:
        (trial,) = study.trials
        directory = trial_directory(study.directory, trial)
        record = json.loads((directory / 'trial.json').read_text())
        assert record['metrics'] == trial.metrics
        assert {'eval/loss', 'eval/accuracy', 'train/loss', 'num_params'} < record['metrics'].keys()
        text = (directory / 'experiment.json').read_text()
        (made,) = experiments(study, trial).values()
        assert pg.eq(from_json_text(text, Tunable, source='experiment.json'), made)
