"""Defects of Pax that no other test excludes: trials that hang, leak, or end their study."""

import gc
import math
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pyglove as pg
import pytest

from paxtune.algorithms import RandomSearch, RegularizedEvolution
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.faults import Faults
from paxtune.config.search import Search
from paxtune.objectives.aggregation import MeanOfSteps
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward, Reward
from paxtune.running.callbacks import Callback
from paxtune.running.trial_spec import experiments
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study, open_plan, open_study
from paxtune.study.plan import SearchPlan
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.trial_experiments import parts_of
from paxtune.study.trial_paths import trial_directory
from tests.factories.studies import ask, states
from tests.factories.tiny import CountingInput, experiment
from tests.factories.tunables import HIDDEN, rates
from trainer.inputs.base import Batch
from trainer.loop.train_loop import run
from trainer.mesh import Mesh
from trainer.program.program import Program, program_for
from trainer.runtime.signals import SkipTrial
from trainer.symbolic.component import Component
from trainer.symbolic.derived import derived
from trainer.symbolic.errors import UserError


@pytest.mark.pax(1, 12)
@pytest.mark.slow
@pytest.mark.parametrize('is_reported', [False, True])
@pytest.mark.sentinel
def test_a_trial_that_was_trained_to_its_end_completes_after_a_kill(
    tmp_path: Path, is_reported: bool
) -> None:
    # the newest checkpoint is that of the last step, and the evaluation there was done.
    with tune(rates(), job_log_dir=tmp_path / 'whole') as study:
        wanted = [trial.reward for trial in study.trials]
    with open_plan(tmp_path / 'parts', SearchPlan.compile(rates())) as study:
        trial = ask(study)
        (made,) = experiments(study, trial.view).values()
        for each in run(made, trial_directory(study.directory, trial.view)):
            if is_reported:
                trial.report(each.step, each.metrics, each.checkpoint)
    with tune(rates(), job_log_dir=tmp_path / 'parts') as study:
        assert states(study) == ['COMPLETED'] * 2
        assert [trial.reward for trial in study.trials] == wanted
        steps = [[each.step for each in trial.measurements] for trial in study.trials]
        assert steps == [[2, 4, 6] if is_reported else [6], [2, 4, 6]]


@pytest.mark.pax(1, 13, 'No evaluation happened')
def test_a_trial_that_measures_nothing_ends_and_is_not_handed_out_again() -> None:
    # nothing was measured that final metrics could be made of.
    calls: list[int] = []
    space = {'x': pg.oneof([0, 1, 2, 3])}

    def function(values: Any) -> Iterator[float]:
        calls.append(values.x)
        yield from ()

    faults = Faults(max_consecutive_failures=9)
    with tune(function, space=space, objective='minimize', faults=faults) as study:
        assert states(study) == ['INFEASIBLE'] * 4
        assert sorted(calls) == [0, 1, 2, 3]
        assert 'nothing was measured' in str(study.trials[0].reason)


_KILLED_WHILE_WRITING = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute('PRAGMA cache_size = 1')  # What is written goes to the disk at once.
connection.execute('BEGIN IMMEDIATE')
connection.execute('DELETE FROM trials')
connection.execute('CREATE TABLE large AS SELECT zeroblob(1000000)')
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.pax(2)
def test_a_study_whose_process_died_while_writing_can_be_read(tmp_path: Path) -> None:
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


@pytest.mark.pax(1)
def test_processes_that_cannot_talk_are_refused_before_the_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pax hangs there. Those that were started together are in test_processes.py.
    monkeypatch.setattr(jax, 'process_count', lambda: 2)
    with pytest.raises(UserError, match='2 processes share their devices, but cannot'):
        tune(rates(), job_log_dir=tmp_path)
    assert not (tmp_path / 'study.db').exists()


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


@pytest.mark.pax(5, 17)
@pytest.mark.slow
@pytest.mark.parametrize('kind', [CountingInput, Breaking])
def test_trials_leave_no_arrays_files_or_threads_behind(
    kind: type[CountingInput], tmp_path: Path
) -> None:
    left, num_trials = Left(), 3
    made = rates(num_trials, train_input=kind(batch_size=8, is_training=True))
    made.rebind({'search.faults.max_consecutive_failures': num_trials + 1})
    with tune(made, job_log_dir=tmp_path, callbacks=[left]) as study:
        ended = 'INFEASIBLE' if kind is Breaking else 'COMPLETED'
        assert states(study) == [ended] * num_trials
    assert len(left.arrays) == len(left.files) == num_trials
    # What one trial holds is more than half of what all hold together, and so on.
    assert max(left.arrays) < 2 * left.arrays[0]
    assert left.files[-1] < left.files[0] + num_trials
    assert left.threads[-1] < left.threads[0] + num_trials


@pytest.mark.pax(17)
@pytest.mark.slow
def test_programs_that_are_not_used_any_more_are_released() -> None:
    programs, mesh = OrderedDict[object, Program](), Mesh().make()

    def program(width: int) -> weakref.ref[Any]:
        made = experiment()
        made.rebind({HIDDEN: width})
        spec = made.train_input.element_spec()
        return weakref.ref(program_for(made.task, mesh, spec, programs, kept=2))

    made = [program(width) for width in (4, 8, 12, 16, 20)]
    gc.collect()
    assert [each() is not None for each in made] == [False] * 3 + [True] * 2


SPEED = MetricReward('maximize', Metric.train_steps_per_second())


@pytest.mark.pax(15)
@pytest.mark.slow
def test_a_trial_that_cannot_be_timed_any_more_ends_no_study(tmp_path: Path) -> None:
    # killed between its last checkpoint and its report, it has no step left to time.
    made = rates(search__objective=SPEED, train__evaluation__every=6)
    with open_plan(tmp_path, SearchPlan.compile(made)) as study:
        trial = ask(study)
        (alone,) = experiments(study, trial.view).values()
        list(run(alone, trial_directory(study.directory, trial.view)))
    with tune(made, job_log_dir=tmp_path) as study:
        assert states(study) == ['INFEASIBLE', 'COMPLETED']
        assert "'train/steps_per_second' is not measured" in str(study.trials[0].reason)


@pytest.mark.pax(10, 'is_train_metric')
def test_a_reward_of_training_metrics_needs_no_evaluation(tmp_path: Path) -> None:
    reward = MetricReward('minimize', Metric.train('loss'))
    made = rates(eval_inputs={}, search__objective=reward)
    with tune(made, job_log_dir=tmp_path) as study:
        for trial in study.trials:
            assert trial.reward == trial.metrics['train/loss']
            assert [each.step for each in trial.measurements] == [2, 4, 6]


class Inverse(Reward):
    """One over a metric."""

    def compute(self, metrics: Any) -> float:
        return 1.0 / metrics['x'] if metrics['x'] else math.inf


@pytest.mark.pax(13, 'NaN final reward', 'cross_step_metric_aggregator')
def test_the_final_reward_is_checked_as_any_other() -> None:
    # each step has a reward, and the mean of the steps has none.
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


class Checked(Component):
    """A component whose `check` raises for one value."""

    how: str

    def check(self) -> None:
        if self.how == 'bug':
            raise RuntimeError('a bug')
        if self.how == 'skip':
            raise SkipTrial('not this one')


@pytest.mark.pax(5)
@pytest.mark.parametrize('algorithm', [RandomSearch(), RegularizedEvolution(2, 1)])
def test_an_error_in_a_check_ends_no_study(algorithm: Any) -> None:
    # a bug is an error of its trial; what is refused with a reason is not suggested at all.
    space = {'part': Checked(pg.oneof(['bug', 'skip', 'good']))}
    with tune(lambda values: 1.0, space=space, algorithm=algorithm, objective='minimize') as study:
        ended = {trial.decisions['part.how']: trial for trial in study.trials}
        assert ended.keys() == {'bug', 'good'}
        assert ended['good'].state == 'COMPLETED'
        assert str(ended['bug'].reason).startswith('RuntimeError: a bug (')
        assert ended['bug'].is_failed
