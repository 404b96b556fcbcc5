"""Flags that choose an engine, and those that one engine alone takes."""

from pathlib import Path

import pytest

from paxtune.engines import flags
from paxtune.engines.choice import engine_for
from paxtune.engines.workers import Workers
from paxtune.running.workloads import workload_of
from paxtune.search import main
from tests.factories.tunables import Rates
from tests.servers.processes import ROOT
from trainer.symbolic.errors import UserError


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (['--engine=rai'], '--engine=rai: there is none. Did you mean ray'),
        (['--engine=ray', '--trial_resources=GPU'], 'resources=GPU: expected a JSON object'),
        (['--engine=ray', '--trial_resources={"GPU": 0}'], 'amounts above 0'),
        (['--engine=ray', '--trial_placement=NEAR'], 'expected one of PACK'),
        (['--engine=ray', '--trial_processes=0'], '--trial_processes=0: expected a number above 0'),
        (['--workers=0'], '--workers=0: expected a number above 0'),
        (['--workers=2', '--worker_memory=0'], '--worker_memory=0.0: expected a number above 0'),
        (['--engine=slurm'], r'--slurm: expected time=HH:MM:SS'),
        (['--engine=slurm', '--slurm', 'time=soon'], 'time=soon: expected HH:MM:SS'),
        (['--pack=1'], '--pack=1: expected at least 2 trials, auto or off'),
        (['--pack=many'], '--pack=many: expected at least 2 trials, auto or off'),
        (['--pack=auto', '--workers=2'], '--pack=auto measures trials in the process'),
        (['--pack=2', '--storage=vizier://a:1'], '--pack=2 --storage: its trials run in the proc'),
        (
            ['--pack=2', '--engine=ray', '--trial_processes=2'],
            '--pack: several processes train one trial at a time',
        ),
        (
            ['--pack=2', '--engine=slurm', '--slurm', 'time=10', 'nodes=2'],
            '--pack: several processes train one trial at a time',
        ),
        (['--engine=ray', '--vizier_endpoint=a:1'], '--engine keeps the study itself'),
        (['--worker_memory=1'], '--worker_memory limits each of --workers'),
    ],
)
def test_flags_that_do_not_fit_are_refused(given: list[str], message: str, tmp_path: Path) -> None:
    exp = ['--exp=tests.factories.tunables.Rates', f'--job_log_dir={tmp_path}']
    with pytest.raises(UserError, match=message):
        main([*exp, *given])


@pytest.mark.parametrize('flag', [each for each in flags.FLAGS if each.engine])
def test_a_flag_of_one_engine_names_it(flag: flags.Flag, tmp_path: Path) -> None:
    given = [f'--job_log_dir={tmp_path}', f'--{flag.name}', '1']
    with pytest.raises(UserError, match=f'--{flag.name} needs --engine={flag.engine}'):
        main(['--exp=tests.factories.tunables.Rates', *given])


def test_workers_are_for_one_process() -> None:
    with pytest.raises(UserError, match='choose one'):
        engine_for(workload_of(Rates()), Workers(2), None, num_processes=2)


def test_the_guide_has_the_table_of_flags() -> None:
    assert flags.table() in (ROOT / 'docs' / 'distributed.md').read_text()
