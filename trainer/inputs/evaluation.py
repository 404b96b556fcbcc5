"""Which batches an evaluation reads.

|                        | `eval_loop_num_batches` = N       | `eval_loop_num_batches` = None |
| ---------------------- | --------------------------------- | ------------------------------ |
| `reset_for_eval=True`  | the first N batches, each time    | the whole set, each time       |
| `reset_for_eval=False` | the next N batches, on a rolling  | refused: it would never end    |
|                        | basis                             |                                |

The whole set is the default. A rolling evaluation keeps its position from one evaluation to the
next, and over a restart. It needs a set that repeats, and an evaluation of the whole set one that
ends, so `repeat` follows `reset_for_eval`; what contradicts it is refused.
"""

import itertools
from collections.abc import Iterator

from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.specs import check_batch
from trainer.symbolic.errors import UserError


def check_evaluation(data: Input, path: str) -> None:
    """Checks that the fields which say what is evaluated go together.

    Args:
        data: a training or an evaluation input.
        path: where it is in the experiment, for messages.

    Raises:
        UserError: they do not; the message begins with the path of a field.
    """
    for field, reason in _training_faults(data) if data.is_training else _faults(data):
        raise UserError(f'{path}.{field}: {reason}')


def _training_faults(data: Input) -> Iterator[tuple[str, str]]:
    if not data.reset_for_eval:
        yield 'reset_for_eval', 'it is for evaluation; training data are never reset'
    if data.eval_loop_num_batches is not None:
        yield (
            'eval_loop_num_batches',
            'it is for evaluation; train.num_train_steps says when training ends',
        )
    if data.repeat is False:
        yield 'repeat', 'training data repeat; train.num_train_steps says when training ends'


def _faults(data: Input) -> Iterator[tuple[str, str]]:
    number, rolls = data.eval_loop_num_batches, not data.reset_for_eval
    if number is not None and number < 1:
        yield 'eval_loop_num_batches', f'it must be at least 1, or null for the whole set: {number}'
    if rolls and number is None:
        yield (
            'reset_for_eval',
            'an evaluation that goes on where the last one ended must be told where to end: set '
            'eval_loop_num_batches, or leave reset_for_eval true to evaluate the whole set',
        )
    if rolls and data.repeat is False:
        yield (
            'repeat',
            'with reset_for_eval=false the data must repeat, or they would be used up: leave it '
            'null, or reset_for_eval true',
        )
    if not rolls and number is None and data.repeat:
        yield (
            'repeat',
            'an evaluation of the whole set would never end: leave it null, or set '
            'eval_loop_num_batches',
        )


def eval_batches(data: Input) -> Iterator[Batch]:
    """The batches of one evaluation, padded. All hosts get equally many.

    Raises:
        UserError: the set is empty, and is to be repeated, or a batch is not what it should be.
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
        raise UserError(f'{data.settings("repeat")[0]}: there is nothing to repeat') from None
