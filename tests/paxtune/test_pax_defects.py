"""Pax's verified defects of tuning do not occur here. `docs/pax-parity.md` lists them by number."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pyglove as pg
import pytest

from paxtune.algorithms import Grid, RegularizedEvolution
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.faults import Faults
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward
from paxtune.running.callbacks import Callback
from paxtune.running.trial_spec import experiments
from paxtune.schedulers import RankStopping, Scheduler, ThresholdStopping
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study, open_plan, open_study
from paxtune.study.plan import SearchPlan
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.trial_experiments import parts_of
from paxtune.study.trial_paths import trial_directory
from tests.factories.studies import ask, states
from tests.factories.tiny import CountingInput, experiment
from tests.factories.tunables import rates
from trainer.inputs.base import Batch
from trainer.loop.train_loop import run
from trainer.program.setup import compiled
from trainer.symbolic.derived import derived
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import from_json_text

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


def test_a_trial_that_measures_nothing_ends_and_is_not_handed_out_again() -> None:
    # 1, 13: nothing was measured that final metrics could be made of.
    calls: list[int] = []
    space = {'x': pg.oneof([0, 1, 2, 3])}

    def function(values: Any) -> Iterator[float]:
        calls.append(values.x)
        yield from ()

    faults = Faults(max_consecutive_failures=9)
    with tune(function, space=space, objective='minimize', faults=faults) as study:
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
        assert trial.view.reward == 5.0 + 3.0
        assert trial.view.metrics == {'loss:short': 5.0, 'loss:long': 3.0}


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
    made.rebind({'search.faults.max_consecutive_failures': num_trials + 1})
    with tune(made, job_log_dir=tmp_path, callbacks=[left]) as study:
        ended = 'INFEASIBLE' if kind is Breaking else 'COMPLETED'
        assert states(study) == [ended] * num_trials
    assert len(left.arrays) == len(left.files) == num_trials
    # What one trial holds is more than half of what all hold together, and so on.
    assert max(left.arrays) < 2 * left.arrays[0]
    assert left.files[-1] < left.files[0] + num_trials
    assert left.threads[-1] < left.threads[0] + num_trials


@pytest.mark.slow
def test_programs_that_are_not_used_any_more_are_released(
    no_programs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 17
    monkeypatch.setattr('trainer.program.program._MOST_PROGRAMS', 3)
    monkeypatch.setattr('trainer.program.program._KEPT_PROGRAMS', 2)

    def structure(width: int) -> Any:
        made = experiment()
        made.rebind({'task.model.stack.layers[0].feed_forward.hidden_dims': width})
        return made

    def program(width: int) -> weakref.ref[Any]:
        return weakref.ref(compiled(structure(width))[0])

    made = [program(width) for width in (4, 8, 12, 16)]
    gc.collect()
    assert [each() is not None for each in made] == [False, False, True, True]


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
    with open_plan(tmp_path, SearchPlan.compile(made)) as study:
        trial = ask(study)
        (alone,) = experiments(study, trial.view).values()
        list(run(alone, trial_directory(study.directory, trial.view)))
    with tune(made, job_log_dir=tmp_path) as study:
        assert states(study) == ['INFEASIBLE', 'COMPLETED']
        assert "'train/steps_per_second' is not measured" in str(study.trials[0].reason)


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
