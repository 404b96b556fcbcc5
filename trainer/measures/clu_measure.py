import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from trainer.measures.base import Measure, Outcome
from trainer.metrics import Metric
from trainer.symbolic.errors import UserError, in_short

_METHODS = ('from_model_output', 'merge', 'compute')


class CluMeasure(Measure):
    """Base of measures that a metric of `clu.metrics` defines: its sums add up over batches.

    A subclass names the metric class, which is any data class of arrays with `from_model_output`,
    `merge` and `compute`. Its `merge` adds the arrays: a metric that keeps the last batch, or
    collects outputs, is refused.

    Attributes:
        METRIC: the metric class.

    Example:
        >>> from clu import metrics
        >>> class CluAccuracy(CluMeasure):
        ...     METRIC = metrics.Accuracy
        ...
        ...     def metric_name(self):
        ...         return 'clu_accuracy'
        >>> outcome = Outcome(jax.numpy.eye(3), np.array([0, 1, 1], np.int32), np.ones(3))
        >>> round(CluAccuracy().measure(outcome).value(), 3)
        0.667
    """

    METRIC: ClassVar[Any] = None
    _sums: ClassVar[type[Metric]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        missing = [each for each in _METHODS if not hasattr(cls.METRIC, each)]
        if missing or not dataclasses.is_dataclass(cls.METRIC):
            raise TypeError(
                f'{cls.__name__}.METRIC must be a data class with {", ".join(_METHODS)}, as those '
                f'of clu.metrics are: {cls.METRIC!r}'
            )
        # A checkpoint names it, so it exists as soon as the measure does.
        cls._sums = _sums_of(cls)

    def model_outputs(self, outcome: Outcome) -> Mapping[str, jax.Array]:
        """The arguments of `from_model_output`.

        `logits` are the outputs, of any task. The `mask` has the examples whose weight is not 0:
        a metric of clu knows no other weights.
        """
        return {
            'logits': outcome.outputs, 'labels': outcome.labels, 'mask': outcome.weights > 0
        }  # fmt: skip

    def measure(self, outcome: Outcome) -> Metric:
        made = self.METRIC.from_model_output(**self.model_outputs(outcome))
        sums = {each.name: getattr(made, each.name) for each in dataclasses.fields(self.METRIC)}
        _require_sums(type(self), sums)
        return self._sums(**sums, mask_sum=jnp.sum(outcome.weights > 0))


def _sums_of(measure: type[CluMeasure]) -> type[Metric]:
    """Makes the class of the sums of a metric: its fields, and the number of examples."""
    metric = measure.METRIC
    names = [each.name for each in dataclasses.fields(metric)]

    def value(self: Any) -> float | None:
        sums = {name: getattr(self, name) for name in names}
        if not self.mask_sum:
            return None  # There were no examples.
        return float(metric(**sums).compute())

    namespace = {
        '__annotations__': dict.fromkeys([*names, 'mask_sum'], Any),
        '__doc__': f'Sums of {metric.__name__}.',
        '__module__': measure.__module__,
        'value': value,
    }
    return type(f'{measure.__name__}Sums', (Metric,), namespace)


def _require_sums(measure: type[CluMeasure], sums: Mapping[str, Any]) -> None:
    """Raises UserError unless `merge` adds arrays and `compute` makes one number of them."""
    metric, name = measure.METRIC, f'{measure.__name__}: {measure.METRIC.__name__}'
    if not all(isinstance(each, jax.Array | np.ndarray | np.generic) for each in sums.values()):
        raise UserError(f'{name} does not keep arrays, so its batches cannot be added up')
    # Whole numbers, which every type of arrays adds exactly.
    one, other = (
        metric(**{field: np.full(each.shape, value, each.dtype) for field, each in sums.items()})
        for value in (1, 2)
    )
    with jax.ensure_compile_time_eval():
        merged = one.merge(other)
        if any(np.any(np.asarray(getattr(merged, field)) != 3) for field in sums):
            raise UserError(
                f'{name}.merge does not add its arrays, so its value depends on the batches. Take '
                'a metric of sums, such as clu.metrics.Average'
            )
        try:
            shape = np.shape(merged.compute())
        except Exception as error:  # The library's, or the user's own code.
            raise UserError(f'{name}.compute cannot be called: {in_short(error)}') from error
    if shape:
        raise UserError(
            f'{name}.compute returns an array of shape {shape}, and a metric is one number'
        )
