"""`python -m paxtune.search`: searches, their flags, and what is refused."""

import contextlib
import fcntl
import io
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pyglove as pg
import pytest
from etils import epath

from paxtune import command_line, search
from paxtune.schedulers import (
    Hyperband,
    MedianStopping,
    PromotingAsha,
    Scheduler,
    ThresholdStopping,
)
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study
from paxtune.study.known_values import GIVEN, OWN, known_values
from paxtune.study.record import KnownDecision
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import trial_directory
from tests.factories import tunables
from tests.factories.searches import MODULE, run
from trainer.runtime.metric_writer import read_metrics
from trainer.symbolic.errors import UserError

RATE = 'task.learner.learning_rate'


def directory_of(study_directory: Path, trial: Trial) -> Path:
    with load_study(study_directory) as study:
        return Path(trial_directory(study.directory, trial))


class Searched(NamedTuple):
    """A search that has ended."""

    directory: Path
    trials: list[Trial]
    printed: str


@pytest.fixture(scope='module')
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """Four trials, which tests only read."""
    directory = tmp_path_factory.mktemp('searched')
    with contextlib.redirect_stdout(io.StringIO()) as out:
        trials = run(directory)
    return Searched(directory, trials, out.getvalue())


@pytest.mark.pax('tune()', '--controller_mode')
@pytest.mark.contract
def test_a_search_ends_with_all_its_trials(searched: Searched) -> None:
    trials = searched.trials
    assert [trial.state for trial in trials] == ['COMPLETED'] * 4
    assert [[m.step for m in trial.measurements] for trial in trials] == [[2, 4, 6]] * 4
    rewards = {trial.id: trial.reward for trial in trials}
    best = min(rewards, key=lambda number: rewards[number] or math.inf)
    assert f'Best trial: {best}, eval/log_pplx={rewards[best]!r}' in searched.printed
    assert '--trial=best' in searched.printed


@pytest.mark.parametrize(('flags', 'platforms'), [([], None), (['--workers=1'], 'cpu')])
def test_a_search_leaves_accelerators_to_its_workers(
    flags: list[str], platforms: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config: Any = jax.config
    before = config.jax_platforms
    request.addfinalizer(lambda: jax.config.update('jax_platforms', before))
    jax.config.update('jax_platforms', None)
    with pytest.raises(UserError, match='nowhere'):
        run(tmp_path, 'Rates', *flags, '--prior_studies=/nowhere')
    assert config.jax_platforms == platforms


@pytest.mark.slow
def test_written_metrics_can_be_the_reward(tmp_path: Path) -> None:
    (trial,) = run(tmp_path, 'Writing', '--num_trials=1')
    steps = {m.step: m.metrics['decode_test/log_prob'] for m in trial.measurements}
    assert list(steps) == [2, 4, 6]
    assert trial.reward == steps[6] < 0
    written = directory_of(tmp_path, trial) / 'decode_out/test/step_000000006.jsonl'
    assert len(written.read_text().splitlines()) == 24


def test_a_reward_of_texts_that_are_not_written_is_refused(tmp_path: Path) -> None:
    flags = ['search.objective.metric=decode_test/log_prob', 'train.decoding=null']
    with pytest.raises(
        UserError, match=r"'decode_test/log_prob' is not measured.*Measured: .*eval/loss"
    ):
        run(tmp_path, 'Writing', '--set', *flags)


@pytest.mark.pax(18, 'add_experiment_config_to_metadata', 'A trial is a whole')
@pytest.mark.pax('Measurements with the', 'Layout: `summaries/`, a')
def test_a_trial_directory_holds_the_trial(searched: Searched) -> None:
    first = searched.trials[0]
    assert pg.is_deterministic(first.materialize())
    directory = directory_of(searched.directory, first)
    assert re.fullmatch(r'0001-learning_rate=[0-9.e-]+', directory.name)
    record = json.loads((directory / 'trial.json').read_text())
    assert record['decisions'] == first.decisions
    assert record['state'] == 'completed'
    assert record['rewards'] == [first.reward]
    assert record['data'] == {'train_input': 'counting', 'eval_inputs.eval': 'counting'}
    assert record['machine']['threads'] >= 1
    assert [m['step'] for m in record['measurements']] == [2, 4, 6]
    last = record['measurements'][-1]
    assert last['checkpoint'] == str(directory / 'checkpoints' / '6')
    costs = ('num_params', 'flops_per_token', 'device_memory_bytes')
    assert all(last['metrics'][cost] > 0 for cost in costs)
    assert record['ended'] >= record['started'] >= record['created']
    assert (directory / 'checkpoints' / '6').is_dir()
    assert read_metrics(directory / 'metrics.jsonl')[-1]['eval/log_pplx'] == first.reward
    written = json.loads((directory / 'experiment.json').read_text())
    rate = first.decisions['task.learner.learning_rate']
    assert written['task']['learner']['learning_rate'] == rate


def test_a_bucket_that_is_not_there_is_refused_before_a_service_is_called(
    store: epath.Path,
) -> None:
    flags = ['--vizier_endpoint=127.0.0.1:1', '--job_log_dir=gs://none/study']
    with pytest.raises(UserError, match=r'gs://none/study: .*there is no such bucket'):
        search.main([f'--exp={MODULE}.Rates', *flags])


@pytest.mark.slow
def test_failures_are_the_trials_own(tmp_path: Path, capsys: Any) -> None:
    trials = run(tmp_path, 'Failures')
    # Three heads do not divide the width: no trial is wasted on them.
    assert len(trials) == 4
    for trial in trials:
        how = trial.decisions['task.model.stack.layers[0].feed_forward.how']
        heads = trial.decisions['task.model.stack.layers[0].attention.num_heads']
        error = directory_of(tmp_path, trial) / 'error.txt'
        reason = trial.reason or ''
        assert heads == 2
        if how == 'raise':
            assert reason.startswith('RuntimeError: this layer cannot be built (')
            assert 'for a long reason' in error.read_text()
        elif how == 'nan':
            assert reason.startswith('the training loss is nan at step 1;')
            assert 'NonFiniteLossError' in error.read_text()
        elif how == 'huge':
            assert 'RESOURCE_EXHAUSTED' in reason or 'memory' in reason.lower()
            assert 'Traceback' in error.read_text()
        else:
            assert trial.state == 'COMPLETED'
            assert not error.exists()
        assert (trial.state == 'INFEASIBLE') == bool(reason)
    assert 'infeasible' in capsys.readouterr().out


def test_a_study_without_a_completed_trial_says_so(tmp_path: Path, capsys: Any) -> None:
    flags = ['--set', 'task.model.stack.layers[0].feed_forward.how=raise', '--num_trials=1']
    code = search.main([f'--exp={MODULE}.Failures', f'--job_log_dir={tmp_path}', *flags])
    assert code == 1
    assert 'No trial was completed' in capsys.readouterr().out


def test_a_broken_invariant_stops_the_search(tmp_path: Path, capsys: Any) -> None:
    flags = ['--exp=tests.factories.faulty_experiments.Slow', f'--job_log_dir={tmp_path}']
    assert search.main([*flags, '--set', 'train_input.fault=invariant']) == 1
    reason = 'InvariantError: trial 1: its decisions have changed'
    assert f'Stopped: {reason}' in capsys.readouterr().out
    with load_study(tmp_path) as study:
        assert [trial.state for trial in study.trials] == ['ACTIVE']


@pytest.mark.slow
def test_a_search_may_begin_with_what_is_known(tmp_path: Path, searched: Searched) -> None:
    initial = tmp_path / 'initial.json'
    initial.write_text(json.dumps([{RATE: 0.05}]))
    flags = ['--tune', 'train.random_seed=intv(0, 100)', '--num_trials=7', '--initial_defaults']
    flags += [f'--initial_trials={initial}', f'--prior_studies={searched.directory}']
    flags += [f'--fork_study={searched.directory}']
    trials = run(tmp_path / 'study', 'Rates', *flags)
    origins = [trial.lineage.origin.split('#')[0] for trial in trials]
    assert origins == [str(searched.directory)] * 4 + ['initial_trials'] * 2 + ['algorithm']
    for one, other in zip(trials, searched.trials, strict=False):
        assert (one.decisions[RATE], one.reward) == (other.decisions[RATE], other.reward)
    assert trials[4].decisions['train.random_seed'] == 0
    assert trials[5].decisions[RATE] == 0.05
    again = run(tmp_path / 'study', 'Rates', *flags)
    assert [trial.reward for trial in again] == [trial.reward for trial in trials]


@pytest.mark.pax('Class-attribute hypers', '`--num_trials`')
def test_tune_opens_fields_and_set_fixes_them() -> None:
    flags = [f'--exp={MODULE}.Rates', '--set', f'{RATE}=0.01', '--num_trials=3', '--tune']
    flags += ['task.learner.optimizer.b1=floatv(0.8, 0.99)', 'train.random_seed=intv(0, 9)']
    tunable = command_line.tunable_for(search.parser().parse_args(flags))
    assert Space(tunables.Rates()).paths == [RATE]
    assert Space(tunable).paths == ['task.learner.optimizer.b1', 'train.random_seed']
    assert (tunable.task.learner.learning_rate, tunable.search.budget.trials) == (0.01, 3)


def test_a_search_knows_the_values_before_its_decisions_were_opened() -> None:
    def known(*flags: str) -> dict[str, KnownDecision]:
        opened = ['--tune', 'task.learner.optimizer.b1=floatv(0.5, 0.99)', '--algorithm=gp_bandit']
        args = search.parser().parse_args([f'--exp={MODULE}.Rates', *opened, *flags])
        made = command_line.workload_for(args)
        return known_values(Space(made.what), made.what.search, made.base)

    b1 = 'task.learner.optimizer.b1'
    assert known()[b1].value == 0.9
    assert known('--set', f'{b1}=0.8')[b1].reason == OWN
    given = known('--prior', f'{b1}=[0.6, 0.7]', f'{RATE}=1e-3')
    assert (given[b1].value, given[RATE].value) == pytest.approx((0.65, 1e-3))
    assert given[RATE].reason == GIVEN
    assert known('--prior=none') == {}
    with pytest.raises(UserError, match=r'--prior=1e-3: expected PATH=VALUE'):
        known('--prior=1e-3')
    with pytest.raises(UserError, match=r'task\.learner\.rate is no decision'):
        known('--prior=task.learner.rate=1e-3')


def test_a_directory_in_use_is_refused_with_the_holder(tmp_path: Path) -> None:
    with (tmp_path / 'lock').open('w') as file:
        file.write('4711')
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match='process 4711 is working there'):
            run(tmp_path)


@pytest.mark.slow
def test_a_quiet_search_prints_its_summary_alone(tmp_path: Path, capsys: Any) -> None:
    run(tmp_path, 'Rates', '--num_trials=1', '--quiet')
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('The study is done') and lines[1].startswith('Best trial: 1')


@pytest.mark.pax('`--num_trials`')
@pytest.mark.slow
def test_a_finished_study_says_so_and_can_grow(tmp_path: Path, capsys: Any) -> None:
    before = run(tmp_path, 'Rates', '--num_trials=1')
    capsys.readouterr()
    again = run(tmp_path, 'Rates', '--num_trials=1')
    assert 'The study is done: it has its only trial' in capsys.readouterr().out
    assert [t.reward for t in again] == [t.reward for t in before]
    assert len(run(tmp_path, 'Rates', '--max_hours=1e-9')) == 1
    assert 'The study is done: its 1e-09 hours are used up' in capsys.readouterr().out
    more = run(tmp_path, 'Rates', '--num_trials=2')
    assert (len(more), more[0].reward) == (2, before[0].reward)


@pytest.mark.parametrize(('name', 'code'), [('SIGINT', 130), ('SIGTERM', 143)])
def test_a_signal_pauses_the_study(tmp_path: Path, capsys: Any, name: str, code: int) -> None:
    flags = ['--exp=tests.factories.faulty_experiments.Slow', f'--job_log_dir={tmp_path}']
    flags += ['--set', 'train_input.seconds=0.0', f'train_input.fault={name}']
    assert search.main(flags) == code
    out = capsys.readouterr().out
    assert 'Paused: interrupted.' in out
    assert f'To resume:\n  {shlex.join(["python", "-m", "paxtune.search", *flags])}' in out


@pytest.mark.pax('Flags of tuning')
@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--set', 'task.learner.lerning_rate=1'], 'learning_rate'),
        (['--set', 'train.num_train_steps=true'], 'train.num_train_steps'),
        (['--tune', 'task.learner.learning_rate=oneof('], 'task.learner.learning_rate'),
        (['--algorithm=gradient_descent'], 'cmaes, default, dna_generator, eagle, gp_bandit, grid'),
        (['--scheduler=patience'], 'asha, hyperband'),
        (
            ['--scheduler=threshold_stopping'],
            r"--scheduler=threshold_stopping: write 'ThresholdStopping\(milestones=…\)'",
        ),
        (['--scheduler=Asha(min_resource=0)'], 'min_resource must be greater than 0'),
        (['--num_trials=0'], 'search.budget: trials must be at least 1'),
        (['--set', 'task.learner.learning_rate=0.1'], 'nothing to search|no decision'),
        (['--set', 'search.objective.metric=evl/loss'], 'Did you mean eval/loss.*Measured: '),
        (['--max_hours=0'], 'search.budget: hours must be above 0'),
        (['--initial_trials=/nowhere.json'], '--initial_trials=/nowhere.json: cannot be read'),
        (['--job_log_dir=gs://bucket/study'], 'local disk.*--vizier_endpoint=HOST:PORT'),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, flags: list[str], message: str) -> None:
    target = tmp_path / 'study'
    with pytest.raises(UserError, match=message):
        search.main([f'--exp={MODULE}.Rates', f'--job_log_dir={target}', *flags])
    assert not (target / 'study.db').exists()


@pytest.mark.parametrize(
    ('flag', 'scheduler'),
    [
        ('none', None),
        ('median', MedianStopping()),
        ('promoting_asha', PromotingAsha(min_resource=2)),
        ('Hyperband(min_resource=10, unit="tokens")', Hyperband(min_resource=10, unit='tokens')),
    ],
)
def test_schedulers_have_names(flag: str, scheduler: Scheduler | None) -> None:
    args = search.parser().parse_args([f'--exp={MODULE}.Rates', '--scheduler', flag])
    assert pg.eq(command_line.tunable_for(args).search.scheduler, scheduler)


def test_an_experiment_keeps_its_own_scheduler_of_the_class_that_is_named() -> None:
    own = ThresholdStopping(milestones=[[10, 0.5]])
    tunable = tunables.Rates()
    tunable.rebind({'search.scheduler': own})
    assert pg.eq(
        command_line.with_part(tunable, 'scheduler', 'threshold_stopping').search.scheduler, own
    )
    assert command_line.with_part(tunable, 'scheduler', 'none').search.scheduler is None


@pytest.mark.pax('No match: a KeyError', 'The running mode')
@pytest.mark.parametrize('path', ['objective.metric', 'limits[0].metric'])
def test_a_metric_that_is_not_measured_is_refused_before_anything_is_written(
    tmp_path: Path, path: str
) -> None:
    flags = ["search.limits=[Limit('num_params', at_most=1e9)]", f'search.{path}=eval/acuracy']
    what = f'search.{path.partition(".")[0]}'
    message = f"{what}: 'eval/acuracy' is not measured. Did you mean eval/accuracy"
    with pytest.raises(UserError, match=re.escape(message)):
        run(tmp_path / 'study', 'Rates', '--set', *flags)
    assert not (tmp_path / 'study').exists()
    assert len(run(tmp_path / 'study', 'Rates', '--num_trials=1')) == 1


def test_missing_data_is_reported_before_any_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='/nowhere') as caught:
        run(tmp_path / 'study', 'WithoutData')
    assert f'--exp={MODULE}.WithoutData --num_trials=4 --smoke' in str(caught.value)
    assert not (tmp_path / 'study').exists()
    assert len(run(tmp_path / 'study', 'WithoutData', '--smoke', '--num_trials=1')) == 1


@pytest.mark.slow
def test_tune_and_set_change_the_space(tmp_path: Path) -> None:
    flags = [
        '--set', 'task.learner.learning_rate=0.01', 'train.num_train_steps=2',
        '--tune', 'task.learner.optimizer.b1=floatv(0.8, 0.99)',
        'task.learner.clipping=oneof([null, GlobalNorm(1.0)])',
        '--algorithm', 'RegularizedEvolution(population_size=2, tournament_size=1)',
        '--num_trials=3',
    ]  # fmt: skip
    trials = run(tmp_path, 'Rates', *flags)
    assert {path for trial in trials for path in trial.decisions} == {
        'task.learner.optimizer.b1', 'task.learner.clipping',
    }  # fmt: skip
    assert trials[2].lineage.parent in (1, 2)
