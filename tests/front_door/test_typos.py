"""Typos in flags: each message has the names that are near."""

from pathlib import Path

import pytest

from tests.front_door.terminal import run

pytestmark = pytest.mark.slow

FIT = '--exp=my_fit.Fit'


@pytest.mark.parametrize(
    ('flags', 'near'),
    [
        (['--exp=lm.StdlibTunabel'], 'Did you mean StdlibTunable?'),
        (['--exp=ml.StdlibTunable'], 'Did you mean lm.StdlibTunable'),
        (['--exp=examples.tunable_lm.Tiyn'], 'Did you mean Tiny?'),
        (['--exp=exmples.tunable_ml.Tiny'], 'Did you mean examples.tunable_lm.Tiny?'),
        (['--exp=my_fitt.Fit'], 'Did you mean my_fit.Fit?'),
        (['--exp=my_fit.Fitt'], 'Did you mean Fit?'),
        (['--exp=my_lab.my_modle.Fit'], 'Did you mean my_lab.my_model.Fit?'),
        (['--exp=examples.tunable_lm'], 'name an experiment in it: examples.tunable_lm.Tiny'),
        ([FIT, '--set', 'task.learner.lerning_rate=1'], 'Did you mean task.learner.learning_rate'),
        ([FIT, '--set', 'tsak.learner.learning_rate=1'], 'Did you mean task?'),
        ([FIT, '--algorithm=random_serach'], 'Did you mean random_search'),
        ([FIT, '--algorithm=RandomSerach()'], 'Did you mean RandomSearch'),
        ([FIT, '--scheduler=medain'], 'Did you mean median?'),
        ([FIT, '--engine=rya'], 'Did you mean ray?'),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else '',
)
def test_a_typo_lists_near_names(home: Path, flags: list[str], near: str) -> None:
    (home / 'my_lab').mkdir()
    (home / 'my_lab' / 'my_model.py').write_text((home / 'my_fit.py').read_text())
    assert near in ' '.join(run(home, '-m', 'paxtune.search', *flags).refused().split())
    assert not (home / 'runs').exists()


def test_a_typo_in_the_name_of_a_flag_lists_near_flags(home: Path) -> None:
    refused = run(home, '-m', 'paxtune.search', FIT, '--num_trails=3').refused()
    assert refused.startswith('unrecognized arguments: --num_trails=3. Did you mean --num_trials')
    refused = run(home, '-m', 'paxtune.studies', 'list', '--rooot=x').refused()
    assert refused == 'unrecognized arguments: --rooot=x. --help lists the flags'
