"""A training loop in plain flax: a model of `benchmarks.plain.linen`, optax, NumPy batches."""

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.plain import gpt, linen
from benchmarks.turnover import setting as fixed
from benchmarks.turnover.setting import Setting, TrialLog

Batch = dict[str, np.ndarray]
Numbers = dict[str, Any]
"""Learning rate, weight decay and warm-up steps by name."""


class Functions(NamedTuple):
    """Functions of a loop; each is compiled at its first call.

    Attributes:
        init: (ids) -> state.
        step: (state, batch, numbers) -> (state, loss).
        evaluate: (state, batch) -> (sum of the losses, number of tokens).
    """

    init: Callable[[Any], Any]
    step: Callable[[Any, Any, Any], tuple[Any, Any]]
    evaluate: Callable[[Any, Any], tuple[Any, Any]]


def functions(steps: int, numbers: Numbers | None = None) -> Functions:
    """New functions, which share nothing that was compiled before.

    Args:
        steps: of a trial, for the schedule.
        numbers: constants of the compiled step; None if they are its arguments.
    """
    shape = gpt.Shape(fixed.LAYERS, fixed.DIMS, fixed.HEADS, fixed.VOCAB)
    module = linen.Decoder(shape, jnp.float32)

    def losses(params: Any, batch: Any) -> tuple[Any, Any]:
        logits: Any = module.apply(params, batch['ids'])
        each = optax.softmax_cross_entropy_with_integer_labels(logits, batch['labels'])
        return jnp.sum(each * batch['weights']), jnp.sum(batch['weights'])

    def loss(params: Any, batch: Any) -> Any:
        total, weight = losses(params, batch)
        return total / weight

    @jax.jit
    def init(ids: Any) -> Any:
        params = module.init(jax.random.key(0), ids)
        # The numbers do not change the shape of the optimizer's state.
        return params, optimizer(steps, numbers or traced_like()).init(params)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, batch: Any, given: Numbers) -> tuple[Any, Any]:
        params, inner = state
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, inner = optimizer(steps, numbers or given).update(gradients, inner, params)
        return (optax.apply_updates(params, updates), inner), value

    return Functions(init, step, jax.jit(lambda state, batch: losses(state[0], batch)))


def traced_like() -> Numbers:
    """Numbers of the right types."""
    return {'learning_rate': 1e-3, 'weight_decay': 0.1, 'warmup_steps': 10}


def optimizer(steps: int, numbers: Numbers) -> optax.GradientTransformation:
    """AdamW with clipping, warm-up and a cosine; the numbers may be traced."""
    rate, warmup = numbers['learning_rate'], numbers['warmup_steps']

    def schedule(step: Any) -> Any:
        ramp = jnp.minimum((step + 1) / warmup, 1.0)
        done = jnp.clip((step - warmup) / (steps - warmup), 0.0, 1.0)
        left = fixed.FINAL + (1 - fixed.FINAL) * 0.5 * (1 + jnp.cos(jnp.pi * done))
        return rate * ramp * left

    return optax.chain(
        optax.clip_by_global_norm(fixed.CLIP),
        optax.scale_by_adam(fixed.B1, fixed.B2, fixed.EPSILON),
        optax.add_decayed_weights(
            numbers['weight_decay'],
            lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params),
        ),
        optax.scale_by_schedule(lambda step: -schedule(step)),
    )


shared_functions = functools.cache(functions)
"""Functions of a process that take the numbers as arguments: compiled once for all trials."""


def train(
    setting: Setting, folder: Path, numbers: Numbers, report: Callable[[int, float], bool]
) -> float:
    """Trains one trial.

    Args:
        setting: of the run.
        folder: has the text. The trial's log is appended there.
        numbers: of the trial.
        report: (step, loss) -> True to stop.

    Returns:
        The last loss.
    """
    compiled = shared_functions(setting.steps)
    if not setting.is_best_practice:
        compiled = functions(setting.steps, numbers)
    text, held_out = read(folder / 'train'), read(folder / 'eval')
    log, value = TrialLog(), float('inf')
    batches = train_batches(text, seed=0)
    state = compiled.init(next(batches)['ids'])
    log.num_params = sum(leaf.size for leaf in jax.tree.leaves(state[0]))
    given = {name: float(number) for name, number in numbers.items()}
    clock, seconds = time.perf_counter(), 0.0
    for step in range(1, setting.steps + 1):
        state, loss = compiled.step(state, next(batches), given)
        if step == 1:
            jax.block_until_ready(loss)
            clock = time.perf_counter()
        if step % setting.every == 0:
            jax.block_until_ready(loss)
            seconds += time.perf_counter() - clock
            log.step_seconds = seconds * step / max(step - 1, 1)
            value = evaluate(compiled, state, held_out, log)
            log.losses.append((time.time(), step, value))
            log.write(folder / 'trials.jsonl')
            if report(step, value):
                break
            clock = time.perf_counter()
    return value


def evaluate(compiled: Functions, state: Any, text: np.ndarray, log: TrialLog) -> float:
    """The mean loss of the held-out text, in nats."""
    total = weight = seconds = 0.0
    batches = list(eval_batches(text))
    is_first = not log.losses
    for index, batch in enumerate(batches):
        began = time.perf_counter()
        found, tokens = map(float, compiled.evaluate(state, batch))
        total, weight = total + found, weight + tokens
        if index or not is_first:
            seconds += time.perf_counter() - began
    log.eval_seconds += seconds * len(batches) / max(len(batches) - is_first, 1)
    return total / weight


def read(path: Path) -> np.ndarray:
    """The bytes of a file."""
    return np.fromfile(path, np.uint8)


def train_batches(text: np.ndarray, seed: int) -> Iterator[Batch]:
    """Windows in random order, without end."""
    generator = np.random.default_rng(seed)
    while True:
        starts = generator.permutation(len(text) // fixed.LENGTH - 1) * fixed.LENGTH
        for index in range(0, len(starts) - fixed.BATCH + 1, fixed.BATCH):
            yield windows(text, starts[index : index + fixed.BATCH])


def eval_batches(text: np.ndarray) -> Iterator[Batch]:
    """The windows in order; the last batch is padded."""
    size = fixed.EVAL_BATCH * fixed.LENGTH
    for begin in range(0, len(text) - 1, size):
        yield windows(text, begin + np.arange(0, size, fixed.LENGTH))


def windows(text: np.ndarray, starts: np.ndarray) -> Batch:
    """Rows that begin at the given places."""
    at = starts[:, None] + np.arange(fixed.LENGTH + 1)
    rows = text.take(at, mode='clip').astype(np.int32)
    weights = (at[:, 1:] < len(text)).astype(np.float32)
    return {'ids': rows[:, :-1], 'labels': rows[:, 1:], 'weights': weights}
