"""Metrics by name: how rewards, limits and schedulers say which number they mean.

A name is `<evaluation set>/<metric>`, `decode_<decode set>/<metric>`, `train/<metric>`, or one of
those that belong to the whole trial, such as `num_params`. Where a trial has several
sub-experiments, `:<sub-experiment>` follows.
"""

import functools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Literal

from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError
from trainer.symbolic.names import nearest

Aggregator = Literal['mean', 'sum', 'max', 'min', 'median']

STATIC_METRICS = ('num_params', 'flops_per_token', 'state_bytes')
"""Metrics that are known before anything is compiled."""

_ANY_EVAL_SET = '(?!train/|eval_train/|decode_)[^/]+/'
_ANY_DECODE_SET = 'decode_[^/]+/'


class MissingMetricError(UserError):
    """A metric that is asked for was not measured."""


class Metric(Component):
    """One number out of all that a trial measures at a step.

    Wherever a metric is asked for, a string is taken as well: its exact name.

    Attributes:
        name: the exact name, without the sub-experiment.
        sub_experiment: the sub-experiment whose metric it is; None for that of all of them.
        aggregator: what makes one number of several metrics that match.
        pattern: take the name as a regular expression. It must match the whole of a name, without
            the sub-experiment, and upper and lower case differ.

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
        """A metric of the training batches."""
        return cls(f'train/{name}', sub_experiment, aggregator)

    @classmethod
    def eval_train(
        cls, name: str, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric':
        """A metric of the next training batch; needs `train.evaluation.train_batch=true`."""
        return cls(f'eval_train/{name}', sub_experiment, aggregator)

    @classmethod
    def eval(
        cls,
        name: str,
        dataset: str | None = None,
        sub_experiment: str | None = None,
        aggregator: Aggregator | None = None,
    ) -> 'Metric':
        """A metric of an evaluation set; of any of them where none is named.

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
        """A metric of what was written for a decode set; for any of them where none is named.

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

    @classmethod
    def num_params(
        cls, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric':
        """The number of parameters, known before anything is compiled."""
        return cls('num_params', sub_experiment, aggregator)

    @classmethod
    def flops_per_token(
        cls, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric':
        """Floating point operations for a token, known before anything is compiled."""
        return cls('flops_per_token', sub_experiment, aggregator)

    @classmethod
    def state_bytes(
        cls, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric':
        """Bytes of the train state, all devices together, known before anything is compiled."""
        return cls('state_bytes', sub_experiment, aggregator)

    @classmethod
    def device_memory_bytes(
        cls, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric':
        """The memory that the compiled training step needs on a device, known before it runs."""
        return cls('device_memory_bytes', sub_experiment, aggregator)

    @classmethod
    def step_seconds(
        cls, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric':
        """Seconds of a training step, measured before the first one where a search asks for it."""
        return cls('step_seconds', sub_experiment, aggregator)

    @classmethod
    def train_steps_per_second(
        cls, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric':
        """Training steps in a second. It measures the machine: no two runs agree on it."""
        return cls('train/steps_per_second', sub_experiment, aggregator)

    @classmethod
    def eval_steps_per_second(
        cls, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric':
        """Evaluation batches in a second. It measures the machine: no two runs agree on it."""
        return cls('eval_steps_per_second', sub_experiment, aggregator)

    @classmethod
    def decode_steps_per_second(
        cls, sub_experiment: str | None = None, aggregator: Aggregator | None = None
    ) -> 'Metric':
        """Batches decoded in a second. It measures the machine: no two runs agree on it."""
        return cls('decode_steps_per_second', sub_experiment, aggregator)

    @property
    def label(self) -> str:
        """What people are shown as its name.

        Example:
            >>> Metric.eval('loss', aggregator='mean').label
            'mean of */loss'
            >>> Metric.decode('exact_match').label
            'decode_*/exact_match'
        """
        shown = self.name
        for any_set, told in ((_ANY_EVAL_SET, '*/'), (_ANY_DECODE_SET, 'decode_*/')):
            if self.pattern and shown.startswith(any_set):
                shown = told + re.sub(r'\\(.)', r'\1', shown.removeprefix(any_set))
        if self.sub_experiment is not None:
            shown = join_name(shown, self.sub_experiment)
        return shown if self.aggregator is None else f'{self.aggregator} of {shown}'

    def matches(self, names: Iterable[str]) -> list[str]:
        """Those of the names that it means, in alphabetical order."""
        # Read once: attributes of symbolic objects are slow, and studies long.
        wanted, part, is_pattern = self.name, self.sub_experiment, self.pattern
        found = []
        for name in names:
            base, sub_experiment = split_name(name)
            if is_pattern:
                is_it = re.fullmatch(wanted, base) is not None
            else:
                # Written out with its sub-experiment, a name is exact as well.
                is_it = wanted == base or (part is None and wanted == name)
            if is_it and part in (None, sub_experiment):
                found.append(name)
        return sorted(found)

    def value(self, metrics: Mapping[str, float], path: str = '') -> float:
        """Its value; NaN if any of the metrics that it is made of is NaN.

        Args:
            metrics: all that was measured, by name.
            path: where in the experiment it is asked for, for messages.

        Raises:
            MissingMetricError: it was not measured.
            UserError: several metrics match, and there is no aggregator.
        """
        where = f'{path}: ' if path else ''
        found = self.matches(metrics)
        if not found:
            raise MissingMetricError(where + self._missing(metrics))
        values = [float(metrics[name]) for name in found]
        if self.aggregator is not None:
            return aggregate(self.aggregator, values)
        if len(found) > 1:
            raise UserError(where + self._ambiguous(found))
        return values[0]

    def _missing(self, metrics: Mapping[str, float]) -> str:
        wanted = self.name
        if self.sub_experiment is not None:
            wanted = join_name(wanted, self.sub_experiment)
        hint = '' if self.pattern else nearest(wanted, metrics)
        what = f'no metric that matches {wanted!r} was' if self.pattern else f'{wanted!r} was not'
        parts = [f'{what} measured.', hint, f'Measured: {", ".join(sorted(metrics)) or "nothing"}.']
        return ' '.join(filter(None, parts))

    def _ambiguous(self, found: list[str]) -> str:
        ways = ["combine them: aggregator='mean' ('sum', 'max', 'min', 'median')"]
        parts = [split_name(name) for name in found]
        if len({base for base, _ in parts}) > 1:
            ways.insert(0, f'name one in full: {parts[0][0]!r}')
        if self.sub_experiment is None and len({part for _, part in parts}) > 1:
            chosen = next(part for _, part in parts if part is not None)
            ways.insert(0, f'choose one: sub_experiment={chosen!r}')
        return f'{self.label!r} may be {", ".join(found)}. Either {", or ".join(ways)}.'


def as_metric(metric: str | Metric) -> Metric:
    """A metric that was given as one, or by its name."""
    return _named(metric) if isinstance(metric, str) else metric


@functools.lru_cache(maxsize=256)
def _named(name: str) -> Metric:
    # To make a symbolic object takes longer than to look up the metric.
    return Metric(name)


def split_name(name: str) -> tuple[str, str | None]:
    """The name of a metric without its sub-experiment, and the sub-experiment.

    Example:
        >>> split_name('eval/loss:fold0'), split_name('eval/loss')
        (('eval/loss', 'fold0'), ('eval/loss', None))
    """
    base, _, sub_experiment = name.rpartition(':')
    return (base, sub_experiment) if base and sub_experiment else (name, None)


def join_name(name: str, sub_experiment: str | None) -> str:
    """The name that `split_name` takes apart."""
    return name if sub_experiment is None else f'{name}:{sub_experiment}'


def aggregate(aggregator: Aggregator, values: Sequence[float]) -> float:
    """One number for several, in whatever order they come.

    Args:
        aggregator: how.
        values: at least one. If one is NaN, so is the result; finite ones never make NaN.
    """
    if any(map(math.isnan, values)):
        return math.nan
    return _AGGREGATORS[aggregator](values)


def _sum(values: Sequence[float]) -> float:
    if not all(map(math.isfinite, values)):
        return sum(values)
    # Exact, and so the same in any order. What has no float is infinite.
    exact = sum(map(Fraction, values), Fraction())
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _median(values: Sequence[float]) -> float:
    # Unlike `statistics.median`, the mean of the two in the middle cannot overflow.
    return statistics.mean([statistics.median_low(values), statistics.median_high(values)])


_AGGREGATORS: dict[Aggregator, Callable[[Sequence[float]], float]] = {
    'mean': statistics.mean,  # Exact, too.
    'sum': _sum,
    'max': max,
    'min': min,
    'median': _median,
}
