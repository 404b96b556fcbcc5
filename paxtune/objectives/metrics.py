"""Metrics by name, for rewards, limits and schedulers.

A name is `<evaluation set>/<metric>`, `decode_<decode set>/<metric>`, `train/<metric>`, or a
metric of the whole trial, such as `num_params`. If a trial has several sub-experiments,
`:<sub-experiment>` follows.
"""

import functools
import math
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Literal, Protocol

from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError, nearest

Aggregator = Literal['mean', 'sum', 'max', 'min', 'median']

STATIC_METRICS = ('num_params', 'flops_per_token', 'state_bytes')
"""Metrics that are known before compilation."""

_ANY_EVAL_SET = '(?!train/|eval_train/|decode_)[^/]+/'
_ANY_DECODE_SET = 'decode_[^/]+/'


class MissingMetricError(UserError):
    """A required metric was not measured."""


class _Factory(Protocol):
    def __call__(
        self, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric': ...


def _of_trial(name: str) -> _Factory:
    def make(sub_experiment: str | None = None, aggregator: Aggregator | None = None) -> 'Metric':
        return Metric(name, sub_experiment, aggregator)

    return staticmethod(make)


class Metric(Component):
    """Selects one of the numbers that a trial measures at a step.

    Wherever a metric is expected, a string is its exact name.

    Attributes:
        name: exact name, without the sub-experiment.
        sub_experiment: sub-experiment of the metric; None for any.
        aggregator: function that combines several matching metrics.
        pattern: interpret the name as a regular expression. It is case-sensitive and must match the
            whole name without the sub-experiment.

    Example:
        >>> measured = {'eval/loss:fold0': 1.0, 'eval/loss:fold1': 3.0, 'train/loss:fold0': 9.0}
        >>> Metric('eval/loss', sub_experiment='fold1').value(measured)
        3.0
        >>> Metric('eval/loss', aggregator='mean').value(measured)
        2.0
        >>> Metric('.*/loss', aggregator='max', pattern=True).value(measured)
        9.0
    """

    name: str
    sub_experiment: str | None = None
    aggregator: Aggregator | None = None
    pattern: bool = False

    def check(self) -> None:
        if not self.name:
            raise ValueError('the name of a metric must not be empty')
        if self.sub_experiment is not None and (
            not self.sub_experiment or ':' in self.sub_experiment
        ):
            raise ValueError(f'{self.sub_experiment!r} is no name of a sub-experiment')
        if self.pattern:
            try:
                re.compile(self.name)
            except re.error as error:
                raise ValueError(f'{self.name!r} is no regular expression: {error}') from error

    @classmethod
    def train(
        cls, name: str, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric':
        """Metric of the training batches."""
        return cls(f'train/{name}', sub_experiment, aggregator)

    @classmethod
    def eval_train(
        cls, name: str, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric':
        """Metric of the next training batch; needs `train.evaluation.train_batch=true`."""
        return cls(f'eval_train/{name}', sub_experiment, aggregator)

    @classmethod
    def eval(
        cls,
        name: str,
        dataset: str | None = None,
        sub_experiment: str | None = None,
        aggregator: Aggregator | None = None,
    ) -> 'Metric':
        """Metric of an evaluation set; of any of them if none is named.

        Example:
            >>> measured = {'valid/f1(@5)': 0.5, 'test/f1(@5)': 0.7, 'train/f1(@5)': 0.9}
            >>> Metric.eval('f1(@5)', 'test').value(measured)
            0.7
            >>> Metric.eval('f1(@5)', aggregator='max').value(measured)
            0.7
        """
        if dataset is not None:
            return cls(f'{dataset}/{name}', sub_experiment, aggregator)
        return cls(_ANY_EVAL_SET + re.escape(name), sub_experiment, aggregator, pattern=True)

    @classmethod
    def decode(
        cls,
        name: str,
        dataset: str | None = None,
        sub_experiment: str | None = None,
        aggregator: Aggregator | None = None,
    ) -> 'Metric':
        """Metric of the outputs for a decode set; of any of them if none is named.

        Example:
            >>> measured = {'decode_test/exact_match': 0.5, 'test/exact_match': 0.7}
            >>> Metric.decode('exact_match', 'test').value(measured)
            0.5
            >>> Metric.decode('exact_match').value(measured)
            0.5
        """
        if dataset is not None:
            return cls(f'decode_{dataset}/{name}', sub_experiment, aggregator)
        return cls(_ANY_DECODE_SET + re.escape(name), sub_experiment, aggregator, pattern=True)

    num_params = _of_trial('num_params')
    """Number of parameters, known before compilation."""
    flops_per_token = _of_trial('flops_per_token')
    """Floating point operations for a token, known before compilation."""
    state_bytes = _of_trial('state_bytes')
    """Bytes of the train state on all devices together, known before compilation."""
    device_memory_bytes = _of_trial('device_memory_bytes')
    """Memory of the compiled training step on one device, known before it runs."""
    step_seconds = _of_trial('step_seconds')
    """Seconds of a training step, measured before the first one if the search needs it."""
    train_steps_per_second = _of_trial('train/steps_per_second')
    """Training steps in a second. It depends on the machine, and differs from run to run."""
    eval_steps_per_second = _of_trial('eval_steps_per_second')
    """Evaluation batches in a second. It depends on the machine, and differs from run to run."""
    decode_steps_per_second = _of_trial('decode_steps_per_second')
    """Decoded batches in a second. It depends on the machine, and differs from run to run."""

    @property
    def label(self) -> str:
        """Display name.

        Example:
            >>> Metric.eval('loss', aggregator='mean').label
            'mean of */loss'
            >>> Metric.decode('exact_match').label
            'decode_*/exact_match'
        """
        text = self.name
        for any_set, glob in ((_ANY_EVAL_SET, '*/'), (_ANY_DECODE_SET, 'decode_*/')):
            if self.pattern and text.startswith(any_set):
                text = glob + re.sub(r'\\(.)', r'\1', text.removeprefix(any_set))
        text = join_name(text, self.sub_experiment)
        return text if self.aggregator is None else f'{self.aggregator} of {text}'

    def matches(self, names: Iterable[str]) -> list[str]:
        """Matching names in alphabetical order."""
        # Read once: attributes of symbolic objects are slow.
        wanted, part, is_pattern = self.name, self.sub_experiment, self.pattern
        found = []
        for name in names:
            base, sub_experiment = split_name(name)
            if is_pattern:
                matches = re.fullmatch(wanted, base) is not None
            else:
                # A full name with its sub-experiment is exact, too.
                matches = wanted == base or (part is None and wanted == name)
            if matches and part in (None, sub_experiment):
                found.append(name)
        return sorted(found)

    def value(self, metrics: Mapping[str, float], path: str = '') -> float:
        """Value of the metric; NaN if one of the matching metrics is NaN. Errors begin with `path`.

        Raises:
            MissingMetricError: it was not measured.
            UserError: several metrics match, and there is no aggregator.
        """
        where = f'{path}: ' if path else ''
        found = self.matches(metrics)
        if not found:
            raise MissingMetricError(where + self.missing(metrics))
        values = [float(metrics[name]) for name in found]
        if self.aggregator is not None:
            return aggregate(self.aggregator, values)
        if len(found) > 1:
            raise UserError(where + self._ambiguous(found))
        return values[0]

    def missing(self, metrics: Collection[str]) -> str:
        """Renders the message that the metric is not measured, with the nearest measured ones."""
        wanted = join_name(self.name, self.sub_experiment)
        hint = '' if self.pattern else nearest(wanted, metrics)
        what = f'no metric that matches {wanted!r} is' if self.pattern else f'{wanted!r} is not'
        parts = [f'{what} measured.', hint, f'Measured: {", ".join(sorted(metrics)) or "nothing"}.']
        return ' '.join(filter(None, parts))

    def _ambiguous(self, found: list[str]) -> str:
        fixes = ["combine them: aggregator='mean' ('sum', 'max', 'min', 'median')"]
        parts = [split_name(name) for name in found]
        if len({base for base, _ in parts}) > 1:
            fixes.insert(0, f'name one in full: {parts[0][0]!r}')
        if self.sub_experiment is None and len({part for _, part in parts}) > 1:
            chosen = next(part for _, part in parts if part is not None)
            fixes.insert(0, f'choose one: sub_experiment={chosen!r}')
        return f'{self.label!r} may be {", ".join(found)}. Either {", or ".join(fixes)}.'


def as_metric(metric: str | Metric) -> Metric:
    """Converts a name to a metric."""
    return _named(metric) if isinstance(metric, str) else metric


@functools.lru_cache(maxsize=256)
def _named(name: str) -> Metric:
    # Creating a symbolic object is slower than evaluating the metric.
    return Metric(name)


def split_name(name: str) -> tuple[str, str | None]:
    """Splits the name of a metric into the name proper and the sub-experiment.

    Example:
        >>> split_name('eval/loss:fold0'), split_name('eval/loss')
        (('eval/loss', 'fold0'), ('eval/loss', None))
    """
    base, _, sub_experiment = name.rpartition(':')
    return (base, sub_experiment) if base and sub_experiment else (name, None)


def join_name(name: str, sub_experiment: str | None) -> str:
    """Inverse of `split_name`."""
    return name if sub_experiment is None else f'{name}:{sub_experiment}'


def aggregate(aggregator: Aggregator, values: Sequence[float]) -> float:
    """Combines at least one value, independent of the order.

    The result is NaN if and only if a value is.
    """
    if any(map(math.isnan, values)):
        return math.nan
    return _AGGREGATORS[aggregator](values)


def _sum(values: Sequence[float]) -> float:
    if not all(map(math.isfinite, values)):
        return sum(values)
    # Exact, so that the order has no effect. An overflow is infinite.
    exact = sum(map(Fraction, values), Fraction())
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _median(values: Sequence[float]) -> float:
    # Unlike in `statistics.median`, the mean of the two middle values cannot overflow.
    return statistics.mean([statistics.median_low(values), statistics.median_high(values)])


_AGGREGATORS: dict[Aggregator, Callable[[Sequence[float]], float]] = {
    'mean': statistics.mean,  # Exact.
    'sum': _sum,
    'max': max,
    'min': min,
    'median': _median,
}
