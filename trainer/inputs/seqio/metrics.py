"""The metrics that SeqIO tasks define on model outputs.

Outputs are keyed by the number that `example_ids` gives to each example. They may come in any
order and from any host. Padding has number 0 and is ignored.

    data = SeqIOInput(..., example_ids=True)
    for batch in eval_batches(data):
        outputs |= dict(zip(batch['example_ids'].tolist(), decode(batch)))
    data.predict_metrics(outputs)
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from trainer.symbolic.errors import UserError

Prediction = str | Sequence[int] | np.ndarray
"""A text, or token ids; ids after the first end-of-sequence id are ignored."""

Kind = Literal['predict', 'score']


@dataclasses.dataclass(frozen=True)
class TaskMetrics:
    """The `metric_fns` of tasks over their examples.

    Attributes:
        name: of the task or mixture, for messages.
        tasks: SeqIO's tasks, in the order of evaluation.
        examples_of: reads all examples of a task.
        num_examples: only this many examples are evaluated; None for all.
        is_partial: examples without an output are left out; otherwise they are an error.
    """

    name: str
    tasks: Sequence[Any]
    examples_of: Callable[[Any], Iterable[Mapping[str, Any]]]
    num_examples: int | None
    is_partial: bool

    def has(self, kind: Kind) -> bool:
        """True if a task has metrics of this kind."""
        return any(_functions(task, kind) for task in self.tasks)

    def predict(self, outputs: Mapping[int, Prediction], vocabulary: Any) -> dict[str, float]:
        """The metrics that compare targets with predictions.

        Targets and predictions go through the task's postprocessor first, as in SeqIO's evaluator.

        Args:
            outputs: decoded by the model, by the number of the example.
            vocabulary: SeqIO's vocabulary that decodes token ids.

        Returns:
            The metrics by name; of a mixture, as `<task>/<name>`.

        Raises:
            UserError: an output is missing or unknown, or a metric is no number.
        """

        def finished(task: Any, output: Prediction, example: Any) -> Any:
            if not isinstance(output, str):
                output = str(vocabulary.decode([int(token) for token in output]))
            return task.postprocess_fn(output, example=example, is_target=False)

        return self._metrics(outputs, 'predict', finished)

    def score(self, scores: Mapping[int, float]) -> dict[str, float]:
        """The metrics of scores, such as each target's log-likelihood; raises as `predict`."""
        return self._metrics(scores, 'score', lambda task, score, example: float(score))

    def _metrics(
        self, outputs: Mapping[int, Any], kind: Kind, finished: Callable[[Any, Any, Any], Any]
    ) -> dict[str, float]:
        metrics: dict[str, float] = {}
        number = 0
        used: set[int] = set()
        for task in self.tasks:
            targets, values = [], []
            for example in self.examples_of(task):
                number += 1
                if self.num_examples is not None and number > self.num_examples:
                    break
                if number in outputs:
                    used.add(number)
                    target = _target(task, example)
                    targets.append(task.postprocess_fn(target, example=example, is_target=True))
                    values.append(finished(task, outputs[number], example))
                elif not self.is_partial:
                    raise UserError(f'{task.name}: there is no output for example {number}')
            prefix = f'{task.name}/' if len(self.tasks) > 1 else ''
            if targets:
                metrics |= _called(task, kind, targets, values, prefix)
        if unknown := set(outputs) - used - {0}:
            raise UserError(f'{self.name}: there is no example {min(unknown)}')
        return metrics


def _called(
    task: Any, kind: Kind, targets: list[Any], values: list[Any], prefix: str
) -> dict[str, float]:
    metrics = {}
    for function in _functions(task, kind):
        for name, value in function(targets, values).items():
            # SeqIO wraps values that are not scalars, such as texts, into objects of its own.
            value = getattr(value, 'value', value)
            try:
                metrics[f'{prefix}{name}'] = float(value)
            except (TypeError, ValueError) as error:
                raise UserError(f'{task.name}: metric {name!r} is no number: {value!r}') from error
    return metrics


def _functions(task: Any, kind: Kind) -> Sequence[Callable[..., Mapping[str, Any]]]:
    found: Sequence[Callable[..., Mapping[str, Any]]]
    found = task.predict_metric_fns if kind == 'predict' else task.score_metric_fns
    return found


def _target(task: Any, example: Mapping[str, Any]) -> str:
    """The target as text: the text before tokenization where the example has it."""
    known = example.get('targets_pretokenized')
    if known is None:
        vocabulary = task.output_features['targets'].vocabulary
        return str(vocabulary.decode([int(token) for token in example['targets']]))
    return known.decode() if isinstance(known, bytes) else str(known)
