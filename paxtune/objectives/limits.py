import math
from collections.abc import Mapping, Sequence

from paxtune.objectives.metrics import STATIC_METRICS, Metric, as_metric, split_name
from trainer.symbolic.component import Component

_NAN = 'nan, which violates every limit'


class Limit(Component):
    """Bounds of a metric. A trial beyond them is infeasible, whatever its reward.

    If several metrics match and the metric has no aggregator, each one is bounded.

    Attributes:
        metric: bounded metric, for example 'num_params'.
        at_most: largest legal value.
        at_least: smallest legal value.

    Example:
        >>> Limit('num_params', at_most=1e6).violation({'num_params': 1.2e6})
        'num_params is 1.2e+06, above its limit of 1e+06'
    """

    metric: str | Metric
    at_most: float | None = None
    at_least: float | None = None

    def check(self) -> None:
        bounds = [bound for bound in (self.at_least, self.at_most) if bound is not None]
        if not bounds:
            raise ValueError('at_most or at_least must be given')
        if not all(map(math.isfinite, bounds)):
            raise ValueError(f'the bounds of a limit must be finite: {bounds}')
        if sorted(bounds) != bounds:
            raise ValueError(
                f'at_least ({self.at_least}) must not be above at_most ({self.at_most})'
            )

    @property
    def selector(self) -> Metric:
        """The metric as an object."""
        return as_metric(self.metric)

    @property
    def label(self) -> str:
        """Display name.

        Example:
            >>> Limit('num_params', at_most=2e6).label, Limit('loss', 3.0, at_least=0.5).label
            ('num_params ≤ 2e+06', '0.5 ≤ loss ≤ 3')
        """
        low = '' if self.at_least is None else f'{self.at_least:g} ≤ '
        high = '' if self.at_most is None else f' ≤ {self.at_most:g}'
        return f'{low}{self.selector.label}{high}'

    @property
    def is_static(self) -> bool:
        """True if the metric is known before compilation."""
        metric = self.selector
        return not metric.pattern and split_name(metric.name)[0] in STATIC_METRICS

    def violation(self, metrics: Mapping[str, float]) -> str | None:
        """Description of a violation; None if there is none, or nothing was measured yet."""
        metric = self.selector
        found = metric.matches(metrics)
        if metric.aggregator is not None and found:
            return self._violation(metric.label, metric.value(metrics))
        reasons = (self._violation(name, metrics[name]) for name in found)
        return next((reason for reason in reasons if reason is not None), None)

    def is_reason(self, reason: str) -> bool:
        """Returns True for a description that `violation` made, as of an infeasible trial.

        Example:
            >>> limit = Limit('num_params', at_most=1e6)
            >>> limit.is_reason(limit.violation({'num_params': 1.2e6}))
            True
            >>> limit.is_reason('num_params is 3, above its limit of 2')
            False
        """
        name, _, message = reason.partition(' is ')
        if name != self.selector.label and not self.selector.matches([name]):
            return False
        bounds = [('above', self.at_most), ('below', self.at_least)]
        ends = [f', {where} its limit of {own:g}' for where, own in bounds if own is not None]
        return message == _NAN or message.endswith(tuple(ends))

    def _violation(self, name: str, value: float) -> str | None:
        if math.isnan(value):
            return f'{name} is {_NAN}'
        if self.at_most is not None and value > self.at_most:
            return f'{name} is {_digits(value, self.at_most)}, above its limit of {self.at_most:g}'
        if self.at_least is not None and value < self.at_least:
            return (
                f'{name} is {_digits(value, self.at_least)}, below its limit of {self.at_least:g}'
            )
        return None


def _digits(value: float, bound: float) -> str:
    """A value with the digits that distinguish it from a bound."""
    return f'{value:g}' if f'{value:g}' != f'{bound:g}' else repr(value)


def violation(limits: Sequence[Limit], metrics: Mapping[str, float]) -> str | None:
    """Describes the first limit that metrics violate; None without one.

    Example:
        >>> violation([Limit('loss', at_most=2.0), Limit('cost', at_most=1.0)], {'cost': 3.0})
        'cost is 3, above its limit of 1'
    """
    return next(filter(None, (limit.violation(metrics) for limit in limits)), None)
