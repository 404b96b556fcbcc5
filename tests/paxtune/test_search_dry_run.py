"""`python -m paxtune.search --dry_run`: what it shows, and that it writes nothing."""

import os
from pathlib import Path

import pytest

from paxtune import search
from paxtune.storage.open_study import load_study, open_plan
from paxtune.study.plan import SearchPlan
from paxtune.study.study import Study
from tests.factories import tunables
from tests.factories.studies import ask
from tests.front_door.files import content
from trainer.symbolic.errors import UserError

EXP = '--exp=tests.factories.tunables.Rates'
SIZED = '--exp=tests.factories.tunables'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, and the one for caches."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setenv('COLUMNS', '200')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]):
    """Shows a dry run: its text, and the parts of its plan by their names."""

    def show(*flags: str) -> tuple[str, dict[str, str]]:
        assert search.main([*flags, '--dry_run']) == 0
        text = capsys.readouterr().out
        pairs = (line.split('  ', 1) for line in text.splitlines() if '  ' in line)
        return text, {name: rest.strip() for name, rest in pairs}

    return show


def opened(directory: Path, num_completed: int) -> Study:
    """A study of the experiment, with trials."""
    made = tunables.Rates()
    study = open_plan(directory, SearchPlan.compile(made))
    for _ in range(num_completed):
        trial = ask(study)
        trial.report(6, {'eval/log_pplx': 2.0})
        trial.complete()
    return study


def names(home: Path) -> list[str]:
    return sorted(str(path) for path in home.rglob('*'))


@pytest.mark.slow
def test_a_new_study_is_described_and_nothing_is_written(home: Path, shown) -> None:
    text, plan = shown(EXP, '--num_trials=3', '--max_hours=2', '--workers=2', '--scheduler=median')
    assert text.startswith('A dry run: nothing is written, and nothing starts.')
    assert plan['experiment'] == 'tests.factories.tunables.Rates'
    assert plan['study'] == 'new'
    assert plan['directory'] == f'runs/{EXP.removeprefix("--exp=")} (would be made)'
    assert plan['contents'].startswith(
        'study.db, study.json, study.uuid, logs/ of workers, trials/'
    )
    assert plan['objective'] == 'minimize eval/log_pplx'
    assert plan['algorithm'] == 'RandomSearch()'
    assert plan['scheduler'] == 'MedianStopping()'
    assert plan['budget'] == '3 trials, 2 hours'
    assert plan['trials run'] == 'in 2 worker processes of this machine'
    assert plan['time'] == 'unknown before a first trial has ended'
    assert plan['task.learner.learning_rate'].startswith('a number from 0.0001 to 0.1')
    assert 'Size: infinite (some decisions are continuous)' in text
    assert plan['parameters'] and plan['FLOPs per token']
    memory = text.splitlines()[-1].removeprefix('Device memory: ').split()
    assert float(memory[0].replace(',', '')) > 1000 and memory[1:4] == ['bytes', 'for', 'one']
    assert names(home) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ('flags', 'where'),
    [
        ('--engine=ray --workers=4', 'in 4 workers on a Ray cluster'),
        ('--engine=slurm --workers=4 --slurm time=1:00:00', 'in 4 workers, as jobs of SLURM'),
        (
            '--workers=2 --pack=3',
            'in 2 worker processes of this machine, each with 3 trials at a time',
        ),
        (
            '--pack=auto',
            'in this process, one trial after another, or 8 at a time if that is faster',
        ),
        (
            '--coordinator=localhost:1 --num_processes=2 --process_id=0',
            'in all processes, which train each trial together',
        ),
    ],
)
def test_the_place_of_trials_is_described_and_nothing_starts(
    home: Path, shown, flags: str, where: str
) -> None:
    _, plan = shown(EXP, *flags.split())
    assert plan['trials run'] == where
    assert names(home) == []


@pytest.mark.slow
def test_defaults_are_named_with_their_reasons(shown) -> None:
    text, plan = shown(EXP, '--algorithm=default')
    assert plan['algorithm'] == 'Portfolio(), the default for one reward, 1 decision'
    assert plan['seed'] == '0, the default: the same seed gives the same trials'
    assert plan['final metrics'].startswith('LastStep(), the default: ')
    assert plan['faults'] == 'Faults(), the default: a crashed trial has 3 attempts'
    assert plan['retention'] == 'Retention(), the default: the 10 best trials keep checkpoints'
    assert plan['known values'].startswith('of 1 of 1 decision, below; --prior=none')
    _, _, known = text.partition('Known values')
    assert 'task.learner.learning_rate' in known and 'by width: GPT-3' in known


@pytest.mark.slow
def test_constraints_and_limits_have_the_share_of_feasible_samples(shown) -> None:
    text, plan = shown(f'{SIZED}.Following')
    assert plan['constraints'].startswith("Requires(condition='task.model.embedding.dims != 12'")
    assert 'samples are infeasible:' in text and 'twelve is unlucky' in text
    assert 'Size: 12 different experiments' in text
    assert '1 of 4' in shown(f'{SIZED}.Widths')[1]['all of them']


@pytest.mark.slow
def test_a_study_that_is_there_is_described_and_not_changed(home: Path, shown) -> None:
    directory = home / 'study'
    flags = [EXP, f'--job_log_dir={directory}']
    with opened(directory, 1) as study:
        ask(study)
    before = content(home), {path: os.stat(path).st_mtime_ns for path in names(home)}
    _, plan = shown(*flags)
    assert plan['study'] == 'resumes with 2 trials (1 completed, 1 active)'
    assert plan['directory'] == str(directory)
    assert plan['time'].startswith('about ') and ' for 3 trials of ' in plan['time']
    assert shown(*flags, '--num_trials=1')[1]['study'].startswith('resumes with 2 trials')
    assert before == (content(home), {path: os.stat(path).st_mtime_ns for path in names(home)})
    with load_study(directory) as study:
        assert len(study.trials) == 2


@pytest.mark.slow
def test_a_study_that_is_done_needs_no_time(home: Path, shown) -> None:
    opened(home / 'study', 4).close()
    _, plan = shown(EXP, '--job_log_dir=study')
    assert plan['study'] == 'done: it has all of its 4 trials (4 completed)'
    assert plan['time'] == 'nothing is left to do'


@pytest.mark.slow
def test_a_study_without_rewards_would_be_replaced(home: Path, shown) -> None:
    with opened(home / 'study', 0) as study:
        ask(study).fail('an error')
    before = content(home)
    text, plan = shown(EXP, '--job_log_dir=study', '--seed=7')
    assert plan['study'] == 'new: replaces one without rewards'
    assert 'search.seed: 0 → 7' in text
    assert content(home) == before


@pytest.mark.slow
def test_the_studies_that_it_learns_from_are_named_with_their_trials(home: Path, shown) -> None:
    for name, count in (('one', 2), ('two', 3)):
        opened(home / 'old' / name, count).close()
    _, plan = shown(EXP, '--learn_from=old', '--job_log_dir=old/new')
    assert plan['learns from'] == '3 trials of old/two, 2 trials of old/one'
    _, plan = shown(EXP, '--prior_studies', 'old/one', '--learn_from=old')
    assert plan['learns from'].count('old/one') == 1


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    'flags',
    [
        ['--metric=eval/los', '--goal=minimize'],
        ['--set', 'search.faults.trial_timeout=3.0'],
        ['--num_processes=2'],
        ['--worker_memory=3'],
        ['--engine=rya'],
        ['--algorithm=random_serach'],
        ['--prior_studies', 'nowhere'],
        ['--learn_from=nowhere'],
        ['--fork_study=nowhere'],
        ['--job_log_dir=gs://bucket/study'],
        ['--job_log_dir=other', '--seed=3'],
        ['--job_log_dir=lost'],
    ],
    ids=lambda flags: flags[0],
)
def test_bad_input_is_refused_as_without_the_flag(home: Path, flags: list[str]) -> None:
    for name in ('other', 'lost'):
        opened(home / name, 1).close()
    (home / 'lost' / 'study.db').unlink()
    before = content(home)
    with pytest.raises(UserError) as dry:
        search.main([EXP, *flags, '--dry_run'])
    assert content(home) == before
    with pytest.raises(UserError) as real:
        search.main([EXP, *flags])
    assert str(dry.value) == str(real.value)
    assert dry.value.exit_code == real.value.exit_code
