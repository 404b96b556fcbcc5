"""`python -m paxtune.supernet`."""

import json
from pathlib import Path

import pytest

from paxtune import load_study, search
from paxtune.__main__ import COMMANDS
from paxtune.supernet.__main__ import main, parser
from trainer.symbolic.errors import UserError

_EXP = '--exp=tests.factories.tunables.Layers'


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--exp=nas.StdlibNas'], r'learning_rate: a supernet chooses between layers'),
        (
            ['--exp=nas.ElasticNas'],
            r'search.objective: paths are ranked by one reward; there are 2',
        ),
        ([_EXP, '--dry_run'], '--dry_run is a flag of paxtune.search'),
        ([_EXP, '--workers=2'], 'a supernet and its trials train in this process'),
        ([_EXP, '--num_processes=2'], 'a supernet and its trials train in this process'),
        (
            [_EXP, '--supernet_set', 'train.steps=8'],
            r'--supernet_set train\.steps: TrainLoop has no',
        ),
    ],
)
def test_bad_input_is_one_message(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        main(flags)
    assert not list(tmp_path.iterdir())


def test_supernet_is_a_command_with_the_flags_of_a_search() -> None:
    assert 'supernet' in COMMANDS
    args = parser().parse_args([_EXP, '--top=3', '--seed=1'])
    assert vars(search.parser().parse_args([_EXP])).keys() < vars(args).keys()
    assert (args.top, args.num_paths, args.seed) == (3, 200, 1)


@pytest.mark.slow
def test_the_best_paths_are_the_first_trials_of_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = [_EXP, '--job_log_dir=s', '--top=2', '--supernet_set', 'train.num_train_steps=8']
    assert main(flags) == 0
    shown = capsys.readouterr().out
    assert 'Training to step 8 in s/supernet' in shown
    assert 'The best of 16 paths of 16, with shared weights' in shown
    ranked = json.loads(Path('s/supernet/paths.json').read_text())['trials']
    rewards = [each['reward'] for each in ranked]
    assert rewards == sorted(rewards) and len(rewards) == 16
    best = json.loads(Path('s/supernet/best.json').read_text())
    assert best == [each['decisions'] for each in ranked[:2]]
    with load_study('s') as study:
        assert [trial.decisions for trial in study.trials] == best
        assert all(trial.measurements[-1].step == 6 for trial in study.trials)
        assert [trial.reward for trial in study.trials] != rewards[:2]
    # The same command again trains nothing; an ordinary search goes on.
    assert main(flags) == 0
    assert json.loads(Path('s/supernet/paths.json').read_text())['trials'] == ranked
    initial = '--initial_trials=s/supernet/best.json'
    assert search.main([_EXP, '--job_log_dir=s', initial, '--num_trials=3']) == 0
    with load_study('s') as study:
        assert len(study.trials) == 3
