"""`python -m paxtune.simulate`."""

import json
from pathlib import Path

import pytest

from paxtune.config.budget import Budget
from paxtune.simulate.__main__ import main as simulate_main
from paxtune.storage.open_study import open_study
from paxtune.studies.__main__ import main as studies_main
from tests.factories import toys
from tests.factories.studies import run
from trainer.symbolic.errors import UserError


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The curves of a small study, as a person exports them."""
    with open_study(tmp_path / 'study', toys.toy(search=toys.search(budget=Budget(12)))) as study:
        run(study)
    path = str(tmp_path / 'curves.json')
    assert studies_main(['curves', str(tmp_path / 'study'), f'--out={path}']) == 0
    return path


def test_schedulers_are_compared(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        f'--table={table}',
        '--scheduler=none,median,Asha(min_resource=10, reduction_factor=2)',
    ]
    assert simulate_main([*flags, '--seeds=3', '--workers=2', '--format=json']) == 0
    full, median, asha = json.loads(capsys.readouterr().out)
    assert (full['scheduler'], full['compute'], full['reached']) == ('none', 1.0, 1.0)
    assert (full['completed'], full['elapsed_steps']) == (12, 120)
    assert median['scheduler'] == 'median' and median['stopped'] > 0
    assert asha['compute'] < 1 and asha['rungs'][0]['step'] == 10
    assert asha['regret']['median'] == 0.0, 'the loss of a toy is its rate at every step'
    assert simulate_main([*flags, '--seeds=2']) == 0
    assert '12 of 12 trials, 1 workers, 2 seeds; loss, minimized' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--scheduler=best'], '--scheduler=best: expected one of adaptive, asha, '),
        (['--scheduler=population_based_training'], 'population_size=…, interval=…'),
        (['--scheduler=RandomSearch()'], r'--scheduler=RandomSearch\(\): expected one of'),
        (['--algorithm=best'], '--algorithm=best: expected one of '),
        (['--num_trials=13'], '13 trials cannot be simulated'),
        (['--goal=minimize'], 'leave out --metric and --goal'),
    ],
)
def test_bad_flags_are_refused(flags: list[str], message: str, table: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate_main([f'--table={table}', '--seeds=2', *flags])


def test_curves_are_written_as_json_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'--out=curves\.npz'):
        studies_main(['curves', str(tmp_path), '--out=curves.npz'])
