"""Searches of experiments that have no search of their own: `--tune`, `--metric` and `--goal`."""

from pathlib import Path

import pyglove as pg
import pytest

import paxtune
from paxtune import command_line, search
from paxtune.experiment import Tunable, as_tunable
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study
from tests.factories.tiny import experiment
from trainer.experiment import Experiment
from trainer.symbolic import registry
from trainer.symbolic.errors import UserError

RATE = 'task.learner.learning_rate'
REWARD = paxtune.MetricReward('minimize', 'eval/log_pplx')
TUNED = ['--tune', f'{RATE}=floatv(1e-4, 1e-2, "log")']
JUDGED = ['--metric=eval/log_pplx', '--goal=minimize']
PLAIN = f'--exp={__name__}.plain'


def plain() -> Experiment:
    return experiment(num_steps=2)


class Own(Experiment):
    width: int = 8


def own() -> Experiment:
    return Own(**dict(plain().sym_init_args))


def test_a_plain_experiment_is_searched_and_python_continues_the_study(tmp_path: Path) -> None:
    more = ['--tune', 'task.learner.optimizer.b1=oneof([0.8, 0.9])']
    flags = [PLAIN, *TUNED, *more, *JUDGED, f'--job_log_dir={tmp_path}']
    assert search.main([*flags, '--num_trials=1', '--algorithm=random_search']) == 0
    with load_study(tmp_path) as study:
        assert study.rewards == [REWARD]
        assert study.record.exp == f'{__name__}.plain'
        assert study.space.paths == [RATE, 'task.learner.optimizer.b1']
    # Python continues what the command has begun.
    space = {
        RATE: pg.floatv(1e-4, 1e-2, 'log'),
        'task.learner.optimizer.b1': pg.oneof([0.8, 0.9]),
    }
    given = plain()
    again = paxtune.tune(
        given,
        space=space,
        objective=REWARD,
        num_trials=2,
        algorithm='random_search',
        job_log_dir=tmp_path,
    )
    with again as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 2
    assert given == plain()


@pytest.mark.fast(6)
@pytest.mark.parametrize('name', registry.available(Experiment)[0])
def test_every_registered_experiment_can_be_searched(name: str) -> None:
    found = registry.find(name, Experiment)
    rate = next(path for path in pg.query(found, r'.*learning_rate$'))
    flags = [f'--exp={name}', '--set', f'{rate}=0.1', '--tune', f'{rate}=floatv(1e-4, 1e-2)']
    judged = ['--metric=train/loss', '--goal=minimize']
    tunable = command_line.tunable_for(search.parser().parse_args([*flags, *judged]))
    assert rate in Space(tunable).paths
    assert tunable.search.objective == paxtune.MetricReward('minimize', 'train/loss')
    is_tunable = isinstance(found, Tunable)
    assert tunable.search.budget.trials == (found.search.budget.trials if is_tunable else 16)


@pytest.mark.slow
def test_an_experiment_of_pax_is_searched_at_its_smoke_size(tmp_path: Path) -> None:
    flags = ['--exp=c4.C4Spmd1BAdam4Replicas', *TUNED, *JUDGED, f'--job_log_dir={tmp_path}']
    with pytest.raises(UserError, match=r'--smoke --metric=eval/log_pplx .*--tune') as missing:
        search.main(flags)
    assert 'c4_en_32000.model' in str(missing.value)
    assert search.main([*flags, '--smoke', '--num_trials=1']) == 0


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (TUNED, r'plain defines no search: .*--metric=eval/loss --goal=minimize'),
        ([*TUNED, '--metric=eval/loss'], r'--metric and --goal: give both'),
        ([*TUNED, '--metric=evl/loss', '--goal=minimize'], r"'evl/loss' is not measured"),
        (JUDGED, 'nothing to search'),
        (['--tune', f'{RATE}=flotv(1, 2)', *JUDGED], rf'{RATE}: .* flotv. Did you mean floatv\?'),
        (['--tune', f'{RATE}=floatv(2, 1)', *JUDGED], rf'{RATE}: floatv: .*2.*greater than.*1'),
        (
            ['--tune', 'train.num_train_steps=floatv(1, 2)', *JUDGED],
            r'train.num_train_steps: expected an integer, got floatv\(1.0, 2.0\)',
        ),
        (['--tune', 'task.learner.rate=floatv(1, 2)', *JUDGED], "Learner has no 'rate'"),
    ],
)
def test_mistakes_are_refused_before_any_write(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        search.main([PLAIN, f'--job_log_dir={tmp_path / "study"}', *flags])
    assert not (tmp_path / 'study').exists()


def test_mistakes_in_python_are_refused(tmp_path: Path) -> None:
    wrong = {'task.learner.lerning_rate': pg.floatv(0.1, 1.0)}
    with pytest.raises(UserError, match=r'space: task.learner.lerning_rate: .* Did you mean'):
        paxtune.tune(plain(), space=wrong, objective=REWARD, job_log_dir=tmp_path / 'study')
    bounds = {RATE: (1e-4, 1e-1)}
    with pytest.raises(UserError, match=r'a number, got .*: to search it, write pg\.floatv\(0'):
        paxtune.tune(plain(), space=bounds, objective=REWARD, job_log_dir=tmp_path / 'study')
    with pytest.raises(UserError, match=r'space: expected values by path'):
        paxtune.tune(plain(), space=[1], objective=REWARD, job_log_dir=tmp_path / 'study')
    with pytest.raises(UserError, match=r'objective: .*MetricReward'):
        paxtune.tune(plain(), space={RATE: pg.floatv(0.1, 1.0)}, job_log_dir=tmp_path / 'study')
    assert not (tmp_path / 'study').exists()


def test_a_class_with_fields_of_its_own_is_refused() -> None:
    with pytest.raises(UserError, match=r'Own has fields .* derive it from paxtune.Tunable'):
        as_tunable(own(), paxtune.Search(REWARD))
