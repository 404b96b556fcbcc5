"""Measures that metrics of clu define."""

from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clu import metrics

from tests.factories.tiny import experiment
from trainer.loop.train_loop import run
from trainer.measures import CluMeasure, Outcome
from trainer.metrics import Totals
from trainer.symbolic.errors import UserError


class CluAccuracy(CluMeasure):
    METRIC = metrics.Accuracy

    def metric_name(self) -> str:
        return 'clu_accuracy'


def first_logit(**outputs: Any) -> Any:
    return outputs['logits'][..., 0]


class FirstLogit(CluMeasure):
    METRIC = metrics.Average.from_fun(first_logit)

    def metric_name(self) -> str:
        return 'first_logit'


class Broken(CluMeasure):
    METRIC = metrics.Std.from_output('labels')

    def metric_name(self) -> str:
        return 'broken'


class Last(CluMeasure):
    METRIC = metrics.LastValue.from_output('logits')

    def metric_name(self) -> str:
        return 'last'


class Collected(CluMeasure):
    METRIC = metrics.CollectingMetric.from_outputs(('labels',))

    def metric_name(self) -> str:
        return 'collected'


@flax.struct.dataclass
class Vector:
    """The sum of the logits of each class, without a library."""

    total: jax.Array

    @classmethod
    def from_model_output(cls, *, logits: jax.Array, **_: Any) -> 'Vector':
        return cls(logits.sum(0))

    def merge(self, other: 'Vector') -> 'Vector':
        return Vector(jnp.add(self.total, other.total))

    def compute(self) -> jax.Array:
        return self.total


class Several(CluMeasure):
    METRIC = Vector

    def metric_name(self) -> str:
        return 'several'


def outcome(size: int, seed: int = 0) -> Outcome:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, size, dtype=np.int32)
    logits = rng.normal(size=(size, 4)).astype(np.float32) + 2 * np.eye(4, dtype=np.float32)[labels]
    weights = rng.integers(0, 2, size).astype(np.float32)
    return Outcome(jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(weights))


@pytest.mark.pax('clu metrics, mixed')
def test_a_clu_metric_has_its_own_value_for_any_batches() -> None:
    parts = [outcome(5, 1), outcome(8, 2), outcome(3, 3)]
    logits, labels, weights = (
        jnp.concatenate(each) for each in zip(*(p[:3] for p in parts), strict=True)
    )
    whole = {'logits': logits, 'labels': labels, 'mask': weights > 0}
    for measure in (CluAccuracy(), FirstLogit()):
        totals = Totals()
        for part in parts:
            totals.add({'x': jax.device_get(jax.jit(measure.measure)(part))})
        expected = float(measure.METRIC.from_model_output(**whole).compute())
        assert totals.values()['x'] == pytest.approx(expected, rel=1e-6)
        assert Totals(totals.to_json()).values() == totals.values()


def test_a_run_measures_with_clu_beside_its_own(tmp_path: Path) -> None:
    made = experiment(num_steps=2, task__metrics=[CluAccuracy()])
    (*_, last) = run(made, tmp_path)
    assert last.metrics['eval/clu_accuracy'] == pytest.approx(last.metrics['eval/accuracy'])


def test_batches_without_examples_have_no_value() -> None:
    empty = outcome(4)._replace(weights=jnp.zeros(4))
    totals = Totals()
    totals.add({'x': jax.device_get(CluAccuracy().measure(empty))})
    assert totals.all_values() == {'x': None}


def test_a_sum_of_zero_is_a_value() -> None:
    zero = Outcome(jnp.zeros((4, 4)), jnp.zeros(4, jnp.int32), jnp.ones(4))
    totals = Totals()
    totals.add({'x': jax.device_get(FirstLogit().measure(zero))})
    assert totals.values() == {'x': 0.0}


@pytest.mark.parametrize(
    ('measure', 'message'),
    [
        (Last(), 'merge does not add its arrays, so its value depends on the batches'),
        (Collected(), 'does not keep arrays'),
        (Several(), r'Vector.compute returns an array of shape \(4,\), and a metric is one number'),
        # clu 0.0.12 calls jnp.clip as JAX no longer has it.
        (Broken(), r'compute cannot be called: clip'),
    ],
)
def test_metrics_that_are_no_sums_are_refused(measure: CluMeasure, message: str) -> None:
    with pytest.raises(UserError, match=message):
        measure.measure(outcome(4))
    with pytest.raises(UserError, match=message):
        jax.jit(measure.measure)(outcome(4))


def test_a_class_that_is_no_metric_is_refused() -> None:
    with pytest.raises(TypeError, match='METRIC must be a data class with from_model_output'):
        type('Wrong', (CluMeasure,), {'METRIC': dict})
