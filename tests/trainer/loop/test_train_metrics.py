"""Metrics of train steps."""

import jax.numpy as jnp
import pytest

from trainer.loop.train_metrics import TrainMetrics
from trainer.metrics import Count, Metrics, WeightedScalar
from trainer.symbolic.errors import NonFiniteLossError


def skipped() -> Metrics:
    one = WeightedScalar(jnp.float32(1.0), jnp.float32(1.0))
    return {'loss': one, 'gradient_norm': one, 'skipped_steps': Count(jnp.float32(1.0))}


def test_ten_skipped_steps_in_a_row_end_a_run_also_where_it_resumes_in_between() -> None:
    saved = None
    with pytest.raises(NonFiniteLossError, match='gradients of 10 steps in a row, up to step 10'):
        for step in range(1, 20):
            metrics = TrainMetrics(saved)
            metrics.add(range(step, step + 1), skipped())
            saved = metrics.to_json()


def test_steps_that_are_skipped_for_a_large_norm_name_their_setting() -> None:
    metrics = TrainMetrics()
    for step in range(1, 11):
        large = skipped() | {'skipped_for_norm': Count(jnp.float32(1.0))}
        metrics.add(range(step, step + 1), large)
    with pytest.raises(
        NonFiniteLossError, match=r'a norm of task\.learner\.skip\.max_norm or more'
    ):
        metrics.since_evaluation()
