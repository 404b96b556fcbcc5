"""Mutations: small random changes of one decision, or of the layers of a list.

The length of a layer list (`layer_lists`) is fixed. An inserted layer pushes the last one out, and
a deletion draws a new last one. A candidate that means "no layer" moves like any other.
"""

import random
from collections.abc import Sequence

import pyglove as pg

from paxtune.algorithms.encoding.sampling import changeable_points, mutate
from paxtune.algorithms.evolution.layer_lists import (
    active_layer_lists,
    draw_layer_list,
    require_layer_lists,
)
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.component import Component, require_above_zero
from trainer.symbolic.errors import UserError

_MAX_TRIES = 20  # Random layers may equal those that they replace.


class Mutation(Component):
    """Derives a child from one parent."""

    def mutate(self, spec: pg.DNASpec, parent: Decisions, rng: random.Random) -> Decisions | None:
        """Returns a legal child that differs from its parent, or None if none was found."""
        raise NotImplementedError(type(self).__name__)

    def check_space(self, spec: pg.DNASpec) -> None:
        """Raises UserError before the first trial if the mutation can change nothing."""


class ChangeOneDecision(Mutation):
    """Changes one decision, drawn uniformly from those that can change.

    Decisions that become active are drawn; all others stay. A choice of several candidates is one
    decision: one candidate is replaced or, if all are chosen, two are swapped.

    Attributes:
        step: standard deviation of a step of a number, relative to the range on its scale; None to
            draw numbers uniformly.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([1, 2]), y=pg.oneof([3])))
        >>> ChangeOneDecision().mutate(spec, {'x': 0, 'y': 0}, random.Random(0))
        {'x': 1, 'y': 0}
    """

    step: float | None = None

    def check(self) -> None:
        require_above_zero(self, 'step')

    def mutate(self, spec: pg.DNASpec, parent: Decisions, rng: random.Random) -> Decisions | None:
        if not changeable_points(spec, parent):
            return None
        return mutate(spec, parent, rng, self.step)


class LayerMutation(Mutation):
    """Rearranges the layers of a list, and draws new ones.

    Decisions that fit move with their layer: choices with the same candidates, numbers in the
    range. The others are drawn. Each layer of any list has the same probability.
    """

    def order(self, count: int, rng: random.Random) -> Sequence[int | None]:
        """Draws for each of `count` ≥ 2 slots the index of its layer; None for a random one."""
        raise NotImplementedError(type(self).__name__)

    def mutate(self, spec: pg.DNASpec, parent: Decisions, rng: random.Random) -> Decisions | None:
        active = active_layer_lists(spec, parent)
        for _ in range(_MAX_TRIES if active else 0):
            drawn = draw_layer_list(active, rng)
            order = self.order(len(drawn), rng)
            child = drawn.rearrange(spec, parent, order, rng)
            if child != parent:
                return child
        return None

    def check_space(self, spec: pg.DNASpec) -> None:
        require_layer_lists(spec, type(self).__name__, 'ChangeOneDecision()')


class ChangeLayer(LayerMutation):
    """Draws all decisions of one layer.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(layers=[pg.oneof([1, 2]) for _ in range(3)]))
        >>> parent = {'layers[0]': 0, 'layers[1]': 0, 'layers[2]': 0}
        >>> list(ChangeLayer().mutate(spec, parent, random.Random(0)).values())
        [0, 0, 1]
    """

    def order(self, count: int, rng: random.Random) -> Sequence[int | None]:
        changed = rng.randrange(count)
        return [None if slot == changed else slot for slot in range(count)]


class InsertLayer(LayerMutation):
    """Inserts a random layer; later layers move up, and the last one is lost.

    Example:
        >>> InsertLayer().order(5, random.Random(0))
        [0, 1, 2, None, 3]
    """

    def order(self, count: int, rng: random.Random) -> Sequence[int | None]:
        inserted = rng.randrange(count)
        return [*range(inserted), None, *range(inserted, count - 1)]


class DeleteLayer(LayerMutation):
    """Deletes a layer; later layers move down, and the last one is drawn.

    Example:
        >>> DeleteLayer().order(5, random.Random(0))
        [0, 1, 2, 4, None]
    """

    def order(self, count: int, rng: random.Random) -> Sequence[int | None]:
        deleted = rng.randrange(count)
        return [*range(deleted), *range(deleted + 1, count), None]


class SwapLayers(LayerMutation):
    """Swaps two layers.

    Example:
        >>> SwapLayers().order(5, random.Random(0))
        [0, 1, 2, 4, 3]
    """

    def order(self, count: int, rng: random.Random) -> Sequence[int | None]:
        order: list[int | None] = list(range(count))
        one, other = rng.sample(range(count), 2)
        order[one], order[other] = other, one
        return order


class AnyMutation(Mutation):
    """Draws one of several mutations; another one if it finds no child.

    Attributes:
        mutations: mutations to draw from.
        weights: relative probabilities; None for equal ones.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([1, 2])))
        >>> swap_or_change = AnyMutation([SwapLayers(), ChangeOneDecision()], weights=[9.0, 1.0])
        >>> swap_or_change.mutate(spec, {'x': 0}, random.Random(0))
        {'x': 1}
    """

    mutations: list[Mutation] = [
        ChangeOneDecision(),
        ChangeLayer(),
        InsertLayer(),
        DeleteLayer(),
        SwapLayers(),
    ]
    weights: list[float] | None = None

    def check(self) -> None:
        if not self.mutations:
            raise ValueError('mutations must hold at least one')
        if self.weights is None:
            return
        if len(self.weights) != len(self.mutations):
            raise ValueError(
                f'weights must be as many as mutations, {len(self.mutations)}: {self.weights}'
            )
        if not all(weight > 0.0 for weight in self.weights):
            raise ValueError(f'weights must be greater than 0: {self.weights}')

    def mutate(self, spec: pg.DNASpec, parent: Decisions, rng: random.Random) -> Decisions | None:
        untried = list(range(len(self.mutations)))
        while untried:
            weights = self.weights and [self.weights[index] for index in untried]
            (drawn,) = rng.choices(untried, weights)
            child = self.mutations[drawn].mutate(spec, parent, rng)
            if child is not None:
                return child
            untried.remove(drawn)
        return None

    def check_space(self, spec: pg.DNASpec) -> None:
        errors: list[UserError] = []
        for mutation in self.mutations:
            try:
                mutation.check_space(spec)
            except UserError as error:
                errors.append(error)
        if len(errors) == len(self.mutations):
            raise errors[0]
