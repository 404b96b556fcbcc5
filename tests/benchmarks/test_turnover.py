"""The model, the loop and the figures of `benchmarks/trial_turnover.py` and its relatives."""

from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import memory, time_to_target, trial_turnover
from benchmarks.time_to_target import Found
from benchmarks.turnover import flax_loop
from benchmarks.turnover.experiment import numbers
from benchmarks.turnover.runs import OURS, Run
from benchmarks.turnover.setting import Setting, TrialLog, read_logs
from trainer.program.setup import compiled
from trainer.symbolic.overrides import replaced

NUMBERS = {'learning_rate': 1e-2, 'weight_decay': 0.1, 'warmup_steps': 5}


@pytest.mark.slow
def test_flax_loop_trains_the_same_model_as_ours() -> None:
    steps = 30
    changes = {
        'task.learner.learning_rate': NUMBERS['learning_rate'],
        'task.learner.optimizer.weight_decay': NUMBERS['weight_decay'],
        'task.learner.schedule.warmup_steps': NUMBERS['warmup_steps'],
        'task.learner.schedule.decay_steps': steps,
    }
    experiment = replaced(numbers(), changes, 'test')
    program, values = compiled(experiment)
    key, batch = program.random_key(0), experiment.train_input.get_next()
    functions = flax_loop.functions(steps, None)
    ours, theirs = program.init(key, values), functions.init(batch['ids'])
    assert sum(leaf.size for leaf in jax.tree.leaves(theirs[0])) == program.num_params()
    losses = []
    for _ in range(steps):
        batch = experiment.train_input.get_next()
        ours, metrics = program.train_step(ours, program.put(batch), key, values)
        text = {name: batch[name] for name in ('ids', 'labels', 'weights')}
        theirs, loss = functions.step(theirs, text, NUMBERS)
        losses.append((float(metrics['loss'].mean), float(loss)))
    # Only the random initial values differ.
    np.testing.assert_allclose(losses[0][0], losses[0][1], rtol=0.05)
    our_mean, their_mean = np.mean(losses[-5:], axis=0)
    np.testing.assert_allclose(our_mean, their_mean, rtol=0.03)


def test_loop_logs_trials_and_stops_where_the_report_says(tmp_path: Path) -> None:
    text = np.arange(6000, dtype=np.int64).astype(np.uint8)
    text.tofile(tmp_path / 'train')
    text[:200].tofile(tmp_path / 'eval')
    setting = Setting(trials=1, steps=4, every=1, is_best_practice=True)
    loss = flax_loop.train(setting, tmp_path, NUMBERS, lambda step, loss: step == 2)
    (log,) = read_logs(tmp_path / 'trials.jsonl')
    assert [step for _, step, _ in log.losses] == [1, 2]
    assert log.losses[-1][2] == loss
    assert log.step_seconds > 0 and log.eval_seconds > 0


def test_evaluation_counts_each_byte_once() -> None:
    batches = list(flax_loop.eval_batches(np.zeros(5000, np.uint8)))
    assert sum(batch['weights'].sum() for batch in batches) == 4999
    assert Setting(1, 1, 1, eval_bytes=5000).eval_batches == len(batches)


def test_beyond_is_the_time_between_ends_without_steps_and_evaluations() -> None:
    logs = [TrialLog([(12.0, 1, 3.0)], 1.0, 0.5, 9, ended) for ended in (12.0, 14.0, 17.0)]
    done = Run(10.0, 8.0, 9.0, logs)
    assert done.beyond() == [0.5, 1.5]
    assert done.seconds_to(3.0) == 2.0
    assert done.seconds_to(2.9) is None


def test_turnover_goals_name_what_is_missed() -> None:
    goals = {'optuna': 3.0, 'ray': 3.0, 'optuna best': 1.0}
    good = {'optuna': 3.0, 'ray': 4.0, 'optuna best': 1.0, 'ray best': 2.0}
    assert trial_turnover.missed(0.3, good, goals) == []
    found = trial_turnover.missed(0.31, good | {'ray': 2.9, 'optuna best': 0.9}, goals)
    assert [text.split()[0] for text in found] == ['0.31', 'ray', 'optuna']


def test_target_goal_needs_each_seed_and_the_least_median() -> None:
    ours, peer = [Found(1.0, True, 3)] * 3, [Found(2.0, True, 3)] * 3
    assert time_to_target.is_met({OURS: ours, 'ray': peer})
    assert not time_to_target.is_met({OURS: peer, 'ray': ours})
    assert not time_to_target.is_met({OURS: [*ours[1:], Found(0.5, False, 3)], 'ray': peer})


def test_growth_of_memory_leaves_the_first_trials_out() -> None:
    assert memory.growth([1.0] * 10 + [100.0] * 190, 20) == 1.0
    assert memory.growth([100.0] * 6 + [150.0] * 6, 6) == 1.5
