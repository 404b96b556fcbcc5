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
        (['--exp=lm.StdlibTunabel'], 'Did you mean StdlibTunable?'),
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


def test_a_flag_that_is_near_to_none_points_to_the_help() -> None:
    with pytest.raises(UserError, match=r'^unrecognized arguments: --rooot=x\. --help lists the'):
        module_of('paxtune.studies').main(['list', '--rooot=x'])
