"""Values in batches that make a loss NaN: labels of no class, ids of no token, NaN itself."""

import contextlib
import time
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from trainer.experiment import Experiment
from trainer.inputs.base import Batch, EndOfData, Input, host_share
from trainer.inputs.weights import broadcast, weights_of
from trainer.task import Task
from trainer.tasks.supervised import SupervisedTask
from trainer.tasks.tokens import TokenTask

_MAX_BATCHES = 1000
"""The largest number of batches that are read again to find a value."""

_MAX_SECONDS = 20.0
"""A run waits no longer for a reason."""

Shapes = dict[Hashable, tuple[int, ...]]
"""Shapes of the outputs of a model, by those of a batch."""


def in_training(data: Input, task: Task, start: Mapping[str, Any] | None, number: int) -> str:
    """The value that explains a loss of NaN; '' if none does, or the batch cannot be read again.

    Args:
        data: the training input.
        start: the position of the first batch; None for that of a new run.
        number: of the batch, from `start` on.
    """
    if number > _MAX_BATCHES:
        return ''
    try:
        with contextlib.closing(_copy(data)) as again:
            if start is not None:
                again.set_position(dict(start))
            end = time.monotonic() + _MAX_SECONDS
            for _ in range(number):
                if time.monotonic() > end:
                    return ''
                batch = again.get_next_padded()
    except Exception as error:  # The loss of NaN is the error to report.
        logging.info('the batch of the step cannot be read again: %s', error)
        return ''
    return oddity(task, batch)


def has_warned(experiment: Experiment, metrics: Mapping[str, float | None]) -> bool:
    """Warns of the evaluation sets whose loss is NaN, with the value that explains it.

    Returns:
        True if there are any.
    """
    found = {
        name: data
        for name, data in experiment.eval_inputs.items()
        if (loss := metrics.get(f'{name}/loss')) is not None and np.isnan(loss)
    }
    for name, data in found.items():
        reason = _first_oddity(experiment.task, data)
        logging.warning('%s/loss is NaN%s', name, reason and f': {reason} (eval_inputs.{name})')
    return bool(found)


def oddity(task: Task, batch: Batch, shapes: Shapes | None = None) -> str:
    """Describes the first value of a batch that makes the loss of a task NaN; '' without any.

    Args:
        shapes: those that are known; new ones are added.
    """
    shapes = {} if shapes is None else shapes
    try:
        found = [*_odd_numbers(batch), *_odd_ids(task, batch), *_odd_labels(task, batch, shapes)]
    except Exception as error:  # A task of users may need other features.
        logging.info('the batch cannot be checked: %s', error)
        return ''
    return found[0] if found else ''


def _copy(data: Input) -> Input:
    return host_share(data, data.num_infeed_hosts, data.infeed_host_index)


def _first_oddity(task: Task, data: Input) -> str:
    shapes: Shapes = {}
    end = time.monotonic() + _MAX_SECONDS
    try:
        with contextlib.closing(_copy(data)) as again, contextlib.suppress(EndOfData):
            for _ in range(_MAX_BATCHES):
                found = oddity(task, again.get_next_padded(), shapes)
                if found or time.monotonic() > end:
                    return found
    except Exception as error:  # The run goes on without a reason.
        logging.info('the evaluation set cannot be read again: %s', error)
    return ''


def _odd_numbers(batch: Batch) -> Iterator[str]:
    for name, values in batch.items():
        if values.dtype.kind == 'f':
            where = ~np.isfinite(values) & _counts(batch, name, values)
            yield from _first(name, values, where, 'is not finite')


def _odd_ids(task: Task, batch: Batch) -> Iterator[str]:
    if not isinstance(task, TokenTask):
        return
    table = getattr(task.model, 'encoder_embedding', None)
    counts = {'ids': task.vocab_size, 'encoder_ids': getattr(table, 'vocab_size', task.vocab_size)}
    for name, count in counts.items():
        if name in batch and count is not None:
            where = (batch[name] < 0) | (batch[name] >= count)
            yield from _first(name, batch[name], where, f'is no token of the vocabulary of {count}')


def _odd_labels(task: Task, batch: Batch, shapes: Shapes) -> Iterator[str]:
    name = task.label_feature if isinstance(task, SupervisedTask) else 'labels'
    labels = batch.get(name)
    if labels is None or labels.dtype.kind not in 'iu':
        return
    of_batch = tuple((each, values.shape, values.dtype.str) for each, values in batch.items())
    if of_batch not in shapes:  # A trace takes seconds for a large model.
        shapes[of_batch] = _outputs(task, batch).shape
    *rows, num_outputs = shapes[of_batch]
    if labels.shape != tuple(rows):
        return
    count = max(num_outputs, 2)
    where = ((labels < 0) | (labels >= count)) & _counts(batch, name, labels)
    kind = 'token of the vocabulary' if isinstance(task, TokenTask) else 'class among the logits'
    yield from _first(name, labels, where, f'is no {kind} of {count}, 0 to {count - 1}')


def _outputs(task: Task, batch: Batch) -> Any:
    def outputs(batch: Any) -> Any:
        keys = {'params': jax.random.key(0)}
        return task.model.module().init_with_output(keys, *task.model_inputs(batch))[0]

    return jax.eval_shape(outputs, jax.tree.map(jnp.asarray, batch))


def _counts(batch: Batch, name: str, values: np.ndarray) -> Any:
    """True where a value has a weight."""
    weights = weights_of(batch, name)
    if weights is None or weights.shape != values.shape[: weights.ndim]:
        return True
    return broadcast(weights, values.shape) != 0


def _first(name: str, values: np.ndarray, where: np.ndarray, what: str) -> Iterator[str]:
    if where.any():
        example, *more = np.argwhere(where)[0].tolist()
        place = ', '.join([f'example {example}', *(f'position {each}' for each in more[:1])])
        yield f'{name} holds {values[example, *more].item()} ({place}), which {what}'
