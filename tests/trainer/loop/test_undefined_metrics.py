"""Metrics without a value at a step, under `keep_best`."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.checkpoints.retention import RetentionPolicy
from trainer.experiment import BestCheckpoint, Checkpoints, Evaluation, Experiment, TrainLoop
from trainer.inputs import NpzInput
from trainer.layers import Mlp
from trainer.learner import Learner
from trainer.loop.checkpoint_jobs import process_each
from trainer.loop.train_loop import run
from trainer.measures import F1, Auc
from trainer.mesh import Mesh
from trainer.tasks import ClassificationTask


def made(folder: Path, num_steps: int) -> Experiment:
    """Evaluates one batch at a time: only the first one of two has one class."""
    x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    label = ((np.arange(16) >= 8) & (x[:, 0] > 0)).astype(np.int32)
    np.savez(folder / 'a.npz', image=x, label=label)

    def data(**fields: Any) -> NpzInput:
        return NpzInput(batch_size=8, path=str(folder / 'a.npz'), **fields)

    checkpoints = Checkpoints(1, keep=1, keep_best=BestCheckpoint('eval/auc', 'maximize'))
    return Experiment(
        task=ClassificationTask(Mlp([4], 2), Learner(1e-2), metrics=[Auc(), F1()]),
        train_input=data(is_training=True),
        eval_inputs={'eval': data(reset_for_eval=False, eval_loop_num_batches=1)},
        mesh=Mesh(data=1),
        train=TrainLoop(num_steps, Evaluation(1), checkpoints),
    )


def test_an_undefined_metric_is_nan_in_reports_and_never_the_best(tmp_path: Path) -> None:
    first = list(run(made(tmp_path, 1), tmp_path / 'run'))
    assert math.isnan(first[0].metrics['eval/auc'])
    assert 'eval/auc' in first[0].undefined
    assert math.isfinite(first[0].metrics['eval/loss'])
    shown: list[Any] = []
    process_each('eval', made(tmp_path, 1), tmp_path / 'run', lambda *each: shown.append(each))
    assert math.isnan(shown[0][1]['eval/auc'])
    written = (tmp_path / 'run' / 'jobs' / 'eval' / 'metrics.jsonl').read_text()
    assert 'eval/loss' in written
    assert 'eval/auc' not in written
    # The run resumes, and repeats the evaluation without a value.
    again = list(run(made(tmp_path, 3), tmp_path / 'run'))
    assert [each.step for each in again] == [1, 2, 3]
    assert [('eval/auc' in each.undefined) for each in again] == [True, False, True]
    assert {path.name for path in (tmp_path / 'run' / 'checkpoints').glob('[0-9]*')} == {'2', '3'}


def test_a_metric_that_is_not_due_is_said_and_ends_no_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = RetentionPolicy(Checkpoints(1, keep_best=BestCheckpoint('decode_p/exact_match')))
    kept.note(1, {'eval/loss': 1.0})
    assert "step 1 has no 'decode_p/exact_match'" in caplog.text
    kept.note(2, {'decode_p/exact_match': 0.5})
    kept.note(3, {'decode_p/exact_match': math.nan})
    assert kept.best_of([1, 2, 3]) == 2
