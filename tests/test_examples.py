"""The examples run, with the results that their docstrings state.

`search_spaces/tunable_lm.py` is the README's: see `test_readme.py`.
"""

import ast
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import optuna
import pyglove as pg
import pytest

from examples import bare_function, multi_objective, nas, nas_lm, optuna_sampler, sweep
from paxtune import load_study, search
from paxtune.experiment import Tunable
from paxtune.integrations.optuna import PaxtuneSampler
from paxtune.objectives.pareto import dominates
from paxtune.reports.space_costs import costs
from paxtune.reports.space_tables import samples
from paxtune.search_space.space import Space
from paxtune.storage.open_study import open_study
from tests.documents import ROOT, commands, parsed
from trainer.layers import Attention
from trainer.program.costs import static_costs
from trainer.runtime.signals import SkipTrial
from trainer.symbolic import registry
from trainer.symbolic.overrides import smoke

FILES = sorted((ROOT / 'examples').glob('*.py'))


def asked(tunable: Tunable, count: int = 100) -> list[Any]:
    """The experiments that a study suggests, in order, to its end or a number."""
    found: list[Any] = []
    with open_study(None, tunable) as study:
        while len(found) < count and (trial := study.ask()) is not None:
            found.append(trial.materialize())
            trial.fail('only asked for')
    return found


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_each_says_how_to_run_it_and_what_that_takes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ast.get_docstring(ast.parse(path.read_text()), clean=False)
    assert text is not None
    assert re.search(r'\b(seconds|minutes?)\b.* on two cores', text.replace('\n', ' '))
    lines = [line.strip() for line in text.splitlines() if line.startswith('    python -m ')]
    assert lines
    for command in commands('\n'.join(lines)):
        if command[2] != f'examples.{path.stem}':
            flags = parsed(command, monkeypatch)
            if getattr(flags, 'exp', None):
                assert registry.find(flags.exp, Tunable).smoke


def test_rows_are_tried_in_their_order() -> None:
    found = asked(sweep.Rows())
    made = [
        [each.sym_get(path) for path in (sweep.HEADS, sweep.REPEATS, sweep.RATE)] for each in found
    ]
    assert made == [[2, 1, 0.03], [2, 2, 0.02], [4, 1, 0.02], [4, 2, 0.01]]


def test_a_grid_is_every_combination() -> None:
    found = asked(sweep.Grid())
    made = sorted((each.sym_get(sweep.REPEATS), each.sym_get(sweep.RATE)) for each in found)
    assert made == [(repeats, rate) for repeats in (1, 2) for rate in (0.003, 0.01, 0.03)]


@pytest.mark.slow
def test_a_sweep_runs(tmp_path: Path) -> None:
    flags = ['--exp=examples.sweep.Rows', f'--job_log_dir={tmp_path}', '--smoke', '--num_trials=1']
    assert search.main(flags) == 0
    with load_study(tmp_path) as study:
        assert [trial.decisions for trial in study.candidates] == [{'shared.sweep': '[2, 1, 0.03]'}]


def broken_rules(experiment: Any) -> set[str]:
    """Computes the rules that an architecture breaks, independently of the example."""
    model = experiment.task.model
    attention = [r.layer for r in model.stack.layers if isinstance(r.layer, Attention)]
    broken = set() if attention else {'sees nothing'}
    widths = [each.num_heads * (each.head_dim or 0) for each in attention]
    if any(width != model.embedding.dims for width in widths):
        broken.add('uneven heads')
    return broken


@pytest.mark.slow
def test_architectures_keep_to_the_rules() -> None:
    for made in asked(nas.QualityAtCost(), count=5):
        assert broken_rules(made) == set()
        assert static_costs(made)['num_params'] <= nas.MAX_PARAMS


@pytest.mark.slow
def test_random_architectures_break_the_rules() -> None:
    space = Space(nas.QualityAtCost())
    found = costs(space, samples(space, 24, seed=0))
    reasons = ' '.join(found.reasons)
    for reason in ('heads must divide dims', 'no layer is attention', 'num_params is'):
        assert reason in reasons


@pytest.mark.slow
def test_architectures_are_rewarded_for_quality_at_a_cost(tmp_path: Path) -> None:
    flags = ['--exp=examples.nas.QualityAtCost', f'--job_log_dir={tmp_path}', '--smoke']
    assert search.main([*flags, '--num_trials=2']) == 0
    with load_study(tmp_path) as study:
        assert len(study.candidates) == 2
        for trial in study.trials:
            off = abs(trial.metrics['flops_per_token'] / nas.TARGET_FLOPS - 1)
            assert trial.reward == pytest.approx(trial.metrics['eval/accuracy'] - 0.1 * off)


@pytest.mark.slow
def test_the_front_that_is_printed_is_not_dominated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    multi_objective.main(['--smoke', '--num_trials=3', f'--job_log_dir={tmp_path}'])
    out = capsys.readouterr().out
    table = out[out.index('trial  bits') :].splitlines()[1:]
    printed = {int(line.split()[0]) for line in table}
    with load_study(tmp_path) as study:
        scores = {trial.id: [-reward for reward in trial.rewards] for trial in study.trials}
    assert len(scores) == 3
    others = {
        number: [dominates(rival, own) for rival in scores.values()]
        for number, own in scores.items()
    }
    assert printed == {number for number, beaten in others.items() if not any(beaten)}
    assert [float(line.split()[2].replace(',', '')) for line in table] == sorted(
        -scores[number][1] for number in printed
    )


@pytest.mark.slow
def test_the_search_begins_with_the_uniform_model() -> None:
    kinds = set()
    with open_study(None, nas_lm.Uniform()) as study:
        for _ in range(4):
            trial = study.ask()
            assert trial is not None
            uniform, decided = trial.materialize(), trial.decisions
            trial.fail('only asked for')
            (begun,) = asked(nas_lm.beginning_with(decided, nas_lm.Architectures()), count=1)
            assert static_costs(begun) == static_costs(uniform)
            assert begun.task.learner == uniform.task.learner
            kinds.add(type(uniform.task.model.stack.layers[0].feed_forward))
            assert {type(block.feed_forward) for block in begun.task.model.stack.layers} <= kinds
    assert len(kinds) == len(nas_lm.FEED_FORWARD)


@pytest.mark.slow(reason='two searches repeat their best trials')
def test_architectures_are_compared_with_a_uniform_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / 'text.txt'
    text.write_bytes(b'to be or not to be ' * 200)
    nas_lm.main([f'--corpus={text}', '--smoke', '--num_trials=2', f'--job_log_dir={tmp_path}'])
    lines = capsys.readouterr().out.splitlines()
    for name, line in (('uniform', lines[-2]), ('architectures', lines[-1])):
        with load_study(tmp_path / name) as study:
            seeds = study.leaderboard[0].trials
            mean = sum(trial.rewards[0] for trial in seeds) / len(seeds)
            assert len(seeds) == nas_lm.SEEDS
            assert [f'{trial.rewards[0]:.4f}' for trial in seeds] == line.split()[1:4]
            assert line.split()[4] == f'{mean:.4f}'


@pytest.mark.slow
@pytest.mark.sentinel
def test_a_function_is_tuned_and_stopped_early() -> None:
    with bare_function.search(num_trials=12, num_epochs=6) as study:
        outcomes = [trial.status for trial in study.trials]
        assert len(outcomes) == 12
        assert 'stopped' in outcomes
        assert study.best is not None
        assert study.best.reward == study.best.measurements[-1].metrics['error']
        first = [(trial.decisions, trial.reward) for trial in study.trials[:2]]
    with bare_function.ask_and_tell(num_trials=2, num_epochs=6) as asked:
        assert [(trial.decisions, trial.reward) for trial in asked.trials] == first


def test_a_run_that_diverges_is_infeasible_and_no_bad_reward() -> None:
    values = pg.Dict(width=64, optimizer='sgd', learning_rate=1.0)
    with pytest.raises(SkipTrial, match='diverged'):
        list(bare_function.train(values, num_epochs=4))


@pytest.mark.slow
def test_plots_hold_the_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / 'plots.html'
    flags = [f'--study_dir={tmp_path / "study"}', f'--out={out}', '--num_trials=6', '-f', 'kernel']
    monkeypatch.setattr(sys, 'argv', ['', *flags])
    names = runpy.run_module('examples.plot_study', run_name='__main__')
    with load_study(tmp_path / 'study') as study:
        trials = study.trials
    rewards = {trial.id: trial.reward for trial in trials if trial.rewards}
    points = {
        int(x): y
        for trace in names['history'].data
        if trace.mode == 'markers'
        for x, y in zip(trace.x, trace.y, strict=True)
    }
    assert {number: points[number] for number in rewards} == rewards
    (coordinates,) = names['parallel'].data
    labels = [dimension.label for dimension in coordinates.dimensions]
    assert labels == ['width', 'optimizer', 'learning_rate', 'error']
    assert list(coordinates.dimensions[-1]['values']) == list(rewards.values())
    drawn = sum(len(trace.x) for trace in names['curves'].data)
    assert drawn >= sum(len(trial.measurements) for trial in trials)
    html = out.read_text()
    assert html.count('Plotly.newPlot(') == 3
    for title in ('Optimization history', 'Decisions', 'Learning curves'):
        assert title in html
    # With a study that is there, it plots that one.
    runpy.run_module('examples.plot_study', run_name='__main__')
    with load_study(tmp_path / 'study') as study:
        assert len(study.trials) == 6


@pytest.mark.slow
def test_our_algorithm_searches_for_optuna() -> None:
    ours = optuna_sampler.search(PaxtuneSampler(seed=0), num_trials=40)
    others = [
        optuna_sampler.search(optuna.samplers.RandomSampler(seed=seed), num_trials=40)
        for seed in range(3)
    ]
    assert ours.best_value < 0.01 < min(study.best_value for study in others)


def test_each_experiment_is_tiny_when_smoked() -> None:
    for make in (sweep.Rows, sweep.Grid, nas.QualityAtCost, multi_objective.LossAndCost):
        assert smoke(make()).train.num_train_steps == 2
