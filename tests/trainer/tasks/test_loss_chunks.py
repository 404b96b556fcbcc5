"""Losses of tokens in chunks: values, gradients and metrics are those of whole logits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance.layer_examples import encoder_decoder
from tests.factories import tiny
from trainer.layers import Attention, FeedForward, FutureTokens, Linear, TransformerBlock
from trainer.layers.base import ForwardContext
from trainer.layers.token_logits import TokenLogits
from trainer.learner import Learner
from trainer.losses import SoftmaxCrossEntropy, WeightedLosses
from trainer.measures import AccuracyAt, AccuracyStrict
from trainer.program.flops import flops
from trainer.program.train_step import ModelCalls, forward
from trainer.state import unboxed
from trainer.symbolic.component import bind, numbers
from trainer.tasks import (
    LanguageModelTask,
    MaskedLanguageModelTask,
    SequenceTask,
)

LEARNER = Learner(learning_rate=0.01)
IDS = jax.random.randint(jax.random.key(0), (4, 9), 1, tiny.VOCAB)
BATCH = {
    'ids': IDS[:, :-1],
    'labels': IDS[:, 1:],
    'weights': jax.random.uniform(jax.random.key(1), (4, 8)) * (IDS[:, 1:] % 5 > 0),
}
SMOOTHED = SoftmaxCrossEntropy(label_smoothing=0.1, z_loss_weight=0.01)


def language_model(loss_chunks: int | None, loss: Any = SMOOTHED, **fields: Any) -> Any:
    model = tiny.model(**{name: each.clone(deep=True) for name, each in fields.items()})
    return LanguageModelTask(
        model, LEARNER.clone(deep=True), loss=loss.clone(deep=True), loss_chunks=loss_chunks
    )


def params_of(task: Any, batch: Any) -> Any:
    drawn = unboxed(task.model.module().init(jax.random.key(2), *task.model_inputs(batch)))
    # Biases and the like begin at zero.
    return jax.tree.map(
        lambda each: each + 0.3 * jax.random.normal(jax.random.key(3), each.shape), drawn['params']
    )


def graded(task: Any, batch: Any) -> Callable[..., Any]:
    """(trained parameters, others, numbers) -> (metrics, gradients of the loss)."""

    def loss(trained: Any, others: Any, values: Any) -> Any:
        variables = {'params': {**others, **trained}}
        rngs = {'dropout': jax.random.key(0)}
        context = ForwardContext(training=True)
        metrics, _ = forward(bind(task, values), variables, batch, rngs, context)
        return metrics['loss'].total, metrics

    def both(*given: Any) -> Any:
        gradients, metrics = jax.grad(loss, has_aux=True)(*given)
        return metrics, gradients

    return both


def require_close(got: Any, wanted: Any) -> None:
    def close(one: Any, other: Any) -> None:
        scale = np.max(np.abs(other)) + 1e-9
        np.testing.assert_allclose(one / scale, other / scale, atol=1e-6)

    jax.tree.map(close, got, wanted)


@pytest.mark.parametrize(
    'head',
    [
        {},
        pytest.param({'head': Linear(tiny.VOCAB)}, marks=pytest.mark.slow),
        pytest.param({'head': Linear(tiny.VOCAB, bias='zeros')}, marks=pytest.mark.slow),
    ],
)
def test_values_and_gradients_are_those_of_whole_logits(head: Any) -> None:
    whole, chunked = (language_model(n, **head).rebind({'model.logits_cap': 5.0}) for n in (1, 5))
    params = params_of(whole, BATCH)
    steps = [jax.jit(graded(task, BATCH)) for task in (whole, chunked)]
    for smoothing in (0.0, 0.1):
        for z_loss in (0.0, 0.01):
            for cap in (1.0, 30.0):
                values = numbers(whole) | {
                    'loss.label_smoothing': smoothing,
                    'loss.z_loss_weight': z_loss,
                    'model.logits_cap': cap,
                }
                wanted, got = (step(params, {}, values) for step in steps)
                assert set(wanted[0]) == {'loss', 'log_pplx', 'accuracy', 'num_predictions'}
                require_close(got, wanted)


@pytest.mark.slow
def test_several_losses_and_later_tokens_are_those_of_whole_logits() -> None:
    both = WeightedLosses(
        {'nats': SoftmaxCrossEntropy(), 'smooth': SMOOTHED.clone()}, {'nats': 1.0, 'smooth': 0.5}
    )
    later = FutureTokens([TransformerBlock(Attention(2), FeedForward(32))])
    tasks = [language_model(n, both, future_tokens=later) for n in (1, 4)]
    params = params_of(tasks[0], BATCH)
    wanted, got = (jax.jit(graded(task, BATCH))(params, {}, numbers(task)) for task in tasks)
    assert {'loss/nats', 'loss/smooth', 'aux_loss'} <= set(wanted[0])
    require_close(got, wanted)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['masked', 'pairs'])
def test_other_tasks_have_the_metrics_of_whole_logits(kind: str) -> None:
    if kind == 'masked':
        block = TransformerBlock(Attention(2, mask='full'), FeedForward(32))
        model, batch = tiny.model(), BATCH | {'word_ids': BATCH['ids'] // 8}
        model.rebind({'stack.layers': [block]})
        tasks = [
            MaskedLanguageModelTask(
                model.clone(deep=True), LEARNER.clone(deep=True), mask_id=3, loss_chunks=n
            )
            for n in (1, 3)
        ]
    else:
        batch = BATCH | {'encoder_ids': BATCH['ids'], 'encoder_weights': BATCH['weights']}
        tasks = [
            SequenceTask(encoder_decoder(), LEARNER.clone(deep=True), loss_chunks=n) for n in (1, 3)
        ]
        batch |= {name: batch[name] % 6 for name in ('ids', 'labels', 'encoder_ids')}
    params = params_of(tasks[0], batch)
    wanted, got = (jax.jit(graded(task, batch))(params, {}, numbers(task)) for task in tasks)
    require_close(got, wanted)


def test_only_trained_arrays_have_gradients() -> None:
    """A frozen table costs no gradient; nothing is computed again."""
    tasks = [language_model(n, head=Linear(tiny.VOCAB)) for n in (1, 4)]
    params, values = params_of(tasks[0], BATCH), numbers(tasks[0])
    head, rest = {'head': params['head']}, {k: v for k, v in params.items() if k != 'head'}
    for trained, others in (({**head, **rest}, {}), (rest, head), (head, rest)):
        wanted, got = (flops(graded(task, BATCH), trained, others, values) for task in tasks)
        assert got == wanted


def test_evaluation_computes_no_gradients() -> None:
    tasks = [language_model(n) for n in (1, 4)]
    params = params_of(tasks[0], BATCH)

    def evaluated(task: Any, params: Any) -> Any:
        return forward(task, {'params': params}, BATCH, {}, ForwardContext())[0]

    wanted, got = (evaluated(task, params) for task in tasks)
    require_close(got, wanted)
    one, other = (
        flops(lambda params, task=task: evaluated(task, params), params) for task in tasks
    )
    assert one == other


def logits_of(task: Any, shape: tuple[int, int] = (4, 8)) -> Any:
    """The outputs of a task, traced on ids of a shape."""
    found: list[Any] = []
    ids = jax.ShapeDtypeStruct(shape, jnp.int32)

    def traced(params: Any, ids: jax.Array) -> None:
        batch = {'ids': ids, 'labels': ids, 'weights': jnp.ones(shape)}
        call = ModelCalls(task, {'params': params}, batch, {}, ForwardContext())
        found.append(task.outputs(call, batch))

    params = jax.eval_shape(lambda: params_of(task, BATCH))
    jax.eval_shape(traced, params, ids)
    return found[0]


def test_large_logits_are_made_in_chunks() -> None:
    assert isinstance(logits_of(language_model(None)), jax.Array)
    large = logits_of(language_model(None), (2**13, 2**9))
    assert isinstance(large, TokenLogits) and large.shape == (2**13, 2**9, tiny.VOCAB)
    assert large.chunks == 8
    assert isinstance(logits_of(language_model(1), (2**13, 2**9)), jax.Array)


class OwnMeasure(LanguageModelTask):
    def measure(self, outputs: jax.Array, batch: Any) -> Any:
        return {**super().measure(outputs, batch)}


class OwnForward(type(tiny.model())):  # type: ignore[misc]
    def forward(self, ids_BT: jax.Array, positions: Any = None) -> jax.Array:
        return 2 * super().forward(ids_BT, positions)


def test_code_that_reads_logits_has_all_of_them() -> None:
    own_model = OwnForward(**tiny.model().sym_init_args)
    learner = LEARNER.clone(deep=True)
    for make, reason in (
        (lambda n: OwnMeasure(tiny.model(), learner, loss_chunks=n), 'OwnMeasure.measure'),
        (lambda n: LanguageModelTask(own_model, learner, loss_chunks=n), 'model: OwnForward'),
        (
            lambda n: LanguageModelTask(
                tiny.model(), learner, metrics=[AccuracyAt(2)], loss_chunks=n
            ),
            'metrics: AccuracyAt',
        ),
    ):
        assert isinstance(logits_of(make(None), (2**13, 2**9)), jax.Array)
        with pytest.raises(ValueError, match=f'loss_chunks must be 1 or None: {reason} needs'):
            make(2)
    strict = LanguageModelTask(tiny.model(), learner, metrics=[AccuracyStrict()], loss_chunks=2)
    assert isinstance(logits_of(strict), TokenLogits)
