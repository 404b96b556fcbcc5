"""The metrics that a SeqIO task defines, of what a model makes of its examples.

A model's outputs come by the number that `example_ids` gives to an example, in any order and from
any host. Padding has number 0, and is left out.

    data = SeqIOInput(..., example_ids=True)
    for batch in eval_batches(data):
        outputs |= dict(zip(batch['example_ids'].tolist(), decode(batch)))
    data.predict_metrics(outputs)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.inputs.libraries import libraries
from trainer.inputs.seqio.tasks import without_caches
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from trainer.inputs.seqio.seqio_input import SeqIOInput

Prediction = str | Sequence[int] | np.ndarray
"""A text, or token ids; what comes after the first end-of-sequence id does not count."""


def predict_metrics(data: 'SeqIOInput', outputs: Mapping[int, Prediction]) -> dict[str, float]:
    """The metrics of a task that compare targets with predictions.

    Targets and predictions go through the task's postprocessor first, as in SeqIO's own evaluator.

    Args:
        data: where the examples came from; what it is evaluated on must all be there, unless
            `eval_loop_num_batches` says that only a part is evaluated.
        outputs: what the model decoded, by the number of the example.

    Returns:
        The metrics by name; of a mixture, as `<task>/<name>`.

    Raises:
        UserError: the task has no such metrics, an output is missing, or a metric is no number.
    """
    vocabulary = data.text_vocabulary()

    def finished(task: Any, output: Prediction, example: Any) -> Any:
        if not isinstance(output, str):
            output = str(vocabulary.decode([int(token) for token in output]))
        return task.postprocess_fn(output, example=example, is_target=False)

    return _metrics(data, outputs, 'predict', finished)


def score_metrics(data: 'SeqIOInput', scores: Mapping[int, float]) -> dict[str, float]:
    """The metrics of a task that judge by scores, such as the log-likelihood of the targets.

    Args:
        data: as in `predict_metrics`.
        scores: of the targets of an example, by its number.

    Returns:
        As `predict_metrics`.

    Raises:
        UserError: as `predict_metrics`.
    """
    return _metrics(data, scores, 'score', lambda task, score, example: float(score))


def has_metrics(data: 'SeqIOInput') -> dict[str, bool]:
    """Whether a task of the input has 'predict' metrics, and 'score' metrics."""
    return {
        kind: any(_functions(task, kind) for task in data.tasks()) for kind in ('predict', 'score')
    }


def _metrics(
    data: 'SeqIOInput',
    outputs: Mapping[int, Any],
    kind: str,
    finished: Callable[[Any, Any, Any], Any],
) -> dict[str, float]:
    if not has_metrics(data)[kind]:
        raise UserError(
            f'{data.mixture_or_task} has no metric_fns of targets and '
            f'{"predictions" if kind == "predict" else "scores"}'
        )
    metrics: dict[str, float] = {}
    tasks, number = data.tasks(), 0
    judged: set[int] = set()
    for task in tasks:
        targets, values = [], []
        for example in _examples(data, task):
            number += 1
            if data.eval_num_examples is not None and number > data.eval_num_examples:
                break
            if number in outputs:
                judged.add(number)
                target = _target(task, example)
                targets.append(task.postprocess_fn(target, example=example, is_target=True))
                values.append(finished(task, outputs[number], example))
            elif data.eval_loop_num_batches is None:
                raise UserError(f'{task.name}: there is no output for example {number}')
        prefix = f'{task.name}/' if len(tasks) > 1 else ''
        if targets:
            metrics |= _called(task, kind, targets, values, prefix)
    if strangers := set(outputs) - judged - {0}:
        raise UserError(f'{data.mixture_or_task}: there is no example {min(strangers)}')
    return metrics


def _called(
    task: Any, kind: str, targets: list[Any], values: list[Any], prefix: str
) -> dict[str, float]:
    metrics = {}
    for function in _functions(task, kind):
        for name, value in function(targets, values).items():
            # SeqIO wraps what is not a scalar, such as a text, into objects of its own.
            value = getattr(value, 'value', value)
            try:
                metrics[f'{prefix}{name}'] = float(value)
            except (TypeError, ValueError) as error:
                raise UserError(f'{task.name}: metric {name!r} is no number: {value!r}') from error
    return metrics


def _functions(task: Any, kind: str) -> Sequence[Callable[..., Mapping[str, Any]]]:
    found: Sequence[Callable[..., Mapping[str, Any]]]
    found = task.predict_metric_fns if kind == 'predict' else task.score_metric_fns
    return found


def _examples(data: 'SeqIOInput', task: Any) -> Any:
    with without_caches():
        return libraries().tfds.as_numpy(data.examples_of(task))


def _target(task: Any, example: Mapping[str, Any]) -> str:
    """The target as text: as it was before it was made tokens of, where that is known."""
    known = example.get('targets_pretokenized')
    if known is None:
        vocabulary = task.output_features['targets'].vocabulary
        return str(vocabulary.decode([int(token) for token in example['targets']]))
    return known.decode() if isinstance(known, bytes) else str(known)
