import dataclasses
import difflib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from paxtune.search_space.labels import display_name, explicit_fields
from trainer.experiment import Experiment
from trainer.layers import Layer
from trainer.program.layer_costs import layer_costs
from trainer.symbolic.component import components

COSTS = ('num_params', 'flops_per_token')


@dataclasses.dataclass(frozen=True)
class Line:
    """One layer, or neighbours that are equal.

    Attributes:
        place: where in the model it stands.
        index: its number there; None if it stands alone.
        layer: its component, without default fields.
        num_params: parameters that are trained.
        flops_per_token: operations of training on a token.
        times: the number of equal layers; the costs are of one.
    """

    place: str
    index: int | None
    layer: str
    num_params: int
    flops_per_token: float
    times: int = 1

    @property
    def name(self) -> str:
        """Where it stands.

        Example:
            >>> Line('stack', 2, 'Identity', 0, 0.0, times=3).name
            'stack[2–4]'
        """
        if self.index is None:
            return self.place
        last = '' if self.times == 1 else f'–{self.index + self.times - 1}'
        return f'{self.place}[{self.index}{last}]'

    @property
    def costs(self) -> dict[str, float]:
        """The costs of all of these layers together, by name."""
        return {
            'num_params': self.num_params * self.times,
            'flops_per_token': self.flops_per_token * self.times,
        }

    def goes_on(self, other: 'Line') -> bool:
        """Returns True if `other` is the next layer of the same stack, and equal."""
        if self.index is None or other.index != self.index + self.times:
            return False
        return dataclasses.replace(other, index=self.index, times=self.times) == self


@dataclasses.dataclass(frozen=True)
class Change:
    """A line that only one of two models has: '−' the first, '+' the second."""

    sign: Literal['−', '+']
    line: Line


def lines(experiment: Experiment) -> list[Line]:
    """The layers of a model, one by one; raises UserError if it does not fit together."""
    return [
        Line(
            cost.place or 'model',
            cost.index,
            display_name(cost.layer) if cost.is_complete else _outside(cost.layer),
            cost.num_params,
            cost.flops_per_token,
        )
        for cost in layer_costs(experiment)
    ]


def _outside(layer: Layer) -> str:
    """A layer without those in it.

    Example:
        >>> from trainer.layers import Embedding, Stack, TransformerLm
        >>> _outside(TransformerLm(Embedding(8, 4), Stack([]), logits_cap=30.0))
        'TransformerLm(logits_cap=30.0, …)'
    """
    fields = [
        f'{name}={display_name(value)}'
        for name, value in explicit_fields(layer)
        if not any(isinstance(each, Layer) for each in components(value))
    ]
    return f'{type(layer).__name__}({", ".join([*fields, "…"])})'


def grouped(single: Iterable[Line]) -> list[Line]:
    """Merges equal neighbours."""
    found: list[Line] = []
    for line in single:
        if found and found[-1].goes_on(line):
            found[-1] = dataclasses.replace(found[-1], times=found[-1].times + line.times)
        else:
            found.append(line)
    return found


def changes(left: Sequence[Line], right: Sequence[Line]) -> list[Change]:
    """Lists the lines that differ between two models, in order.

    Layers are aligned by place and kind, so an inserted layer is one change. A layer with other
    costs, as in a wider model, differs.
    """
    kinds = [[(each.place, each.layer) for each in side] for side in (left, right)]
    matcher = difflib.SequenceMatcher(None, kinds[0], kinds[1], autojunk=False)
    found: list[Change] = []
    for how, i, i_end, j, j_end in matcher.get_opcodes():
        if how != 'equal':
            found += _sides(left[i:i_end], right[j:j_end])
            continue
        pairs = list(zip(left[i:i_end], right[j:j_end], strict=True))
        for is_same, run in itertools.groupby(pairs, lambda pair: pair[0].costs == pair[1].costs):
            if not is_same:
                before, after = zip(*run, strict=True)
                found += _sides(before, after)
    return found


def _sides(left: Sequence[Line], right: Sequence[Line]) -> Iterator[Change]:
    yield from (Change('−', line) for line in grouped(left))
    yield from (Change('+', line) for line in grouped(right))


def totals(model: Iterable[Line]) -> dict[str, float]:
    """The costs of all lines together, by name."""
    costs = [line.costs for line in model]
    return {name: sum(cost[name] for cost in costs) for name in COSTS}
