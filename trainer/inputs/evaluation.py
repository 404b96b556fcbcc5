"""The batches of an evaluation.

|                        | `eval_loop_num_batches` = N       | `eval_loop_num_batches` = None |
| ---------------------- | --------------------------------- | ------------------------------ |
| `reset_for_eval=True`  | the first N batches, each time    | the whole set, each time       |
| `reset_for_eval=False` | the next N batches (rolling)      | an error: it would never end   |

The whole set is the default. A rolling evaluation keeps its position from one evaluation to the
next, and over a restart. It needs a set that repeats; an evaluation of the whole set needs one that
ends. So `repeat` follows `reset_for_eval`, and another value is an error.
"""

import itertools
from collections.abc import Iterator

from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.specs import check_batch
from trainer.symbolic.errors import UserError


def check_evaluation(data: Input, path: str) -> None:
    """Checks the combination of the fields of evaluation of a training or evaluation input.

    Raises:
        UserError: they contradict each other; the message starts with the path of a field.
    """
    for field, reason in _training_faults(data) if data.is_training else _faults(data):
        raise UserError(f'{path}.{field}: {reason}')


def _training_faults(data: Input) -> Iterator[tuple[str, str]]:
    if not data.reset_for_eval:
        yield 'reset_for_eval', 'it is only for evaluation; training data are never reset'
    if data.eval_loop_num_batches is not None:
        yield (
            'eval_loop_num_batches',
            'it is only for evaluation; train.num_train_steps sets the end of training',
        )
    if data.repeat is False:
        yield 'repeat', 'training data repeat; train.num_train_steps sets the end of training'


def _faults(data: Input) -> Iterator[tuple[str, str]]:
    number, rolls = data.eval_loop_num_batches, not data.reset_for_eval
    if number is not None and number < 1:
        yield 'eval_loop_num_batches', f'it must be at least 1, or null for the whole set: {number}'
    if rolls and number is None:
        yield (
            'reset_for_eval',
            'a rolling evaluation needs a number of batches: set eval_loop_num_batches, or leave '
            'reset_for_eval true to evaluate the whole set',
        )
    if rolls and data.repeat is False:
        yield (
            'repeat',
            'with reset_for_eval=false the data must repeat: leave it null, or set '
            'reset_for_eval=true',
        )
    if not rolls and number is None and data.repeat:
        yield (
            'repeat',
            'an evaluation of the whole set would never end: leave it null, or set '
            'eval_loop_num_batches',
        )


def eval_batches(data: Input) -> Iterator[Batch]:
    """The padded batches of one evaluation, equally many on all hosts.

    Raises:
        UserError: a repeated set is empty, or a batch does not match its spec.
    """
    spec = data.padded_spec()
    if data.reset_for_eval:
        data.reset()
    repeats = bool(data.repeat) if data.reset_for_eval else True
    for number in itertools.count():
        if number == data.eval_loop_num_batches:
            return
        try:
            batch = data.get_next_padded()
        except EndOfData:
            if not repeats:
                return
            data.reset()
            batch = _first(data)
        yield check_batch(batch, spec, data)


def _first(data: Input) -> Batch:
    try:
        return data.get_next_padded()
    except EndOfData:
        raise UserError(f'{data.settings("repeat")[0]}: the data are empty') from None
