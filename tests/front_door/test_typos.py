"""Typos in flags: each message has the names that are near."""

from pathlib import Path

import pytest

from paxtune import search
from trainer.command import module_of
from trainer.symbolic.errors import UserError

FIT = '--exp=my_fit.Fit'


@pytest.mark.parametrize(
    ('flags', 'near'),
    [
        (['--exp=lm.StdlibTunabel'], 'Did you mean StdlibTunable or'),
        (['--exp=ml.StdlibTunable'], 'Did you mean lm.StdlibTunable'),
        (['--exp=tunable_lm.Tiyn'], 'Did you mean Tiny?'),
        (['--exp=tunable_ml.Tiny'], 'Did you mean tunable_lm.Tiny'),
        (['--exp=exmples.swep.Rows'], 'Did you mean examples.sweep.Rows?'),
        (['--exp=my_fitt.Fit'], 'Did you mean my_fit.Fit?'),
        (['--exp=my_fit.Fitt'], 'Did you mean Fit?'),
        (['--exp=my_lab.my_modle.Fit'], 'Did you mean my_lab.my_model.Fit?'),
        (['--exp=examples.sweep'], 'name an experiment in it: examples.sweep.Rows'),
        ([FIT, '--set', 'task.learner.lerning_rate=1'], 'Did you mean task.learner.learning_rate'),
        ([FIT, '--set', 'tsak.learner.learning_rate=1'], 'Did you mean task?'),
        ([FIT, '--algorithm=random_serach'], 'Did you mean random_search'),
        ([FIT, '--algorithm=RandomSerach()'], 'Did you mean RandomSearch'),
        ([FIT, '--scheduler=medain'], 'Did you mean median?'),
        ([FIT, '--engine=rya'], 'Did you mean ray?'),
        ([FIT, '--num_trails=3'], 'arguments: --num_trails=3. Did you mean --num_trials'),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else '',
)
def test_a_typo_lists_near_names(entered: Path, flags: list[str], near: str) -> None:
    (entered / 'my_lab').mkdir()
    (entered / 'my_lab' / 'my_model.py').write_text((entered / 'my_fit.py').read_text())
    with pytest.raises(UserError) as refused:
        search.main(flags)
    assert near in ' '.join(str(refused.value).split())
    assert not (entered / 'runs').exists()


@pytest.mark.parametrize(
    ('flags', 'near'),
    [
        (['page', 'runs/mine', '--por=1'], r'--por=1\. Did you mean --port'),
        (['trials', 'runs/mine', '--n=3'], r'--n=3\. Write --limit=10'),
        (['best', 'runs/mine', '--n', '3'], r'--n 3\. Write --top=5'),
        (['trials', 'runs/mine', '--sort-by=x'], r'Write --sort=COLUMN'),
        (['trials', 'runs/mine', '--csv'], r'Write --format=csv'),
        (['page', 'runs/mine', '--path-prefix=/x'], r'Write --base_path=/PATH'),
        (['delete', 'runs/mine', '1', '--force'], r'Write --yes'),
        (['show', 'runs/mine', '--logdir=x'], r'Write DIR, the --job_log_dir of a search'),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else '',
)
def test_a_flag_of_a_command_on_studies_has_near_names(flags: list[str], near: str) -> None:
    with pytest.raises(UserError, match=rf'^unrecognized arguments: .*{near}'):
        module_of('paxtune.studies').main(flags)


def test_a_flag_that_is_near_to_none_points_to_the_help() -> None:
    with pytest.raises(UserError, match=r'^unrecognized arguments: --rooot=x\. --help lists the'):
        module_of('paxtune.studies').main(['list', '--rooot=x'])
