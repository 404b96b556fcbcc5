"""Small random changes of an experiment: of one decision, or of the layers of a program.

A program is a list in the experiment of which at least two elements, its layers, hold decisions
(`programs.py`). Its length is fixed, so a layer that is inserted pushes the last one out, and where
one is deleted, a new one is drawn at the end. No candidate is known to mean that there is no layer:
where the space has one, it moves like any other.
"""

import random
from collections.abc import Sequence

import pyglove as pg

from paxtune.algorithms.encoding.sampling import mutate, num_changeable
from paxtune.algorithms.evolution.layer_lists import drawn_program, open_programs, require_programs
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

_MAX_TRIES = 20  # Until it is believed that all drawn layers would be as they are.


class Mutation(Component):
    """Makes a child of one parent."""

    def mutate(self, spec: pg.DNASpec, parent: Decisions, rng: random.Random) -> Decisions | None:
        """A legal child that differs from its parent; None where none was found.

        Args:
            spec: the space.
            parent: what is changed; it stays as it is.
            rng: what the change is drawn from.
        """
        raise NotImplementedError(type(self).__name__)

    def check_space(self, spec: pg.DNASpec) -> None:
        """Called before the first trial of a study.

        Raises:
            UserError: it can change nothing in this space.
        """


class ChangeOneDecision(Mutation):
    """Changes exactly one decision, drawn uniformly from those that can change.

    What the changed decision opens is drawn anew; all else stays. A choice of several candidates
    is one decision: one of them is replaced, or, where all candidates are chosen, two change
    places.

    Attributes:
        step: how far a number moves when it changes: a standard deviation, as a share of the range
            on its scale. None where it is drawn anew.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([1, 2]), y=pg.oneof([3])))
        >>> ChangeOneDecision().mutate(spec, {'x': 0, 'y': 0}, random.Random(0))
        {'x': 1, 'y': 0}
    """

    step: float | None = None

    def check(self) -> None:
        if self.step is not None and self.step <= 0.0:
            raise ValueError(f'step must be greater than 0: {self.step}')

    def mutate(self, spec: pg.DNASpec, parent: Decisions, rng: random.Random) -> Decisions | None:
        if not num_changeable(spec, parent):
            return None
        return mutate(spec, parent, rng, self.step)


class LayerMutation(Mutation):
    """Moves the layers of a program, and draws new ones.

    A layer takes to its new place those of its decisions that fit there: a choice where the
    candidates are the same, a number that is within the range. The others are drawn at random. Of
    several programs, each layer has even chances.
    """

    def order(self, count: int, rng: random.Random) -> Sequence[int | None]:
        """What comes to each place of a program.

        Args:
            count: how many layers it has, at least 2.
            rng: what the order is drawn from.

        Returns:
            The place whose layer comes there, or None for a layer that is drawn anew.
        """
        raise NotImplementedError(type(self).__name__)

    def mutate(self, spec: pg.DNASpec, parent: Decisions, rng: random.Random) -> Decisions | None:
        there = open_programs(spec, parent)
        for _ in range(_MAX_TRIES if there else 0):
            program = drawn_program(there, rng)
            order = self.order(len(program), rng)
            child = program.rearranged(spec, parent, order, rng)
            if child != parent:
                return child
        return None

    def check_space(self, spec: pg.DNASpec) -> None:
        require_programs(spec, type(self).__name__, 'ChangeOneDecision()')


class ChangeLayer(LayerMutation):
    """Draws all decisions of one layer anew.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(layers=[pg.oneof([1, 2]) for _ in range(3)]))
        >>> parent = {'layers[0]': 0, 'layers[1]': 0, 'layers[2]': 0}
        >>> list(ChangeLayer().mutate(spec, parent, random.Random(0)).values())
        [0, 0, 1]
    """

    def order(self, count: int, rng: random.Random) -> Sequence[int | None]:
        changed = rng.randrange(count)
        return [None if place == changed else place for place in range(count)]


class InsertLayer(LayerMutation):
    """Draws a layer and puts it before another; from there on layers move up, and the last is lost.

    Example:
        >>> InsertLayer().order(5, random.Random(0))
        [0, 1, 2, None, 3]
    """

    def order(self, count: int, rng: random.Random) -> Sequence[int | None]:
        inserted = rng.randrange(count)
        return [*range(inserted), None, *range(inserted, count - 1)]


class DeleteLayer(LayerMutation):
    """Takes one layer out; those after it move down, and the last is drawn anew.

    Example:
        >>> DeleteLayer().order(5, random.Random(0))
        [0, 1, 2, 4, None]
    """

    def order(self, count: int, rng: random.Random) -> Sequence[int | None]:
        deleted = rng.randrange(count)
        return [*range(deleted), *range(deleted + 1, count), None]


class SwapLayers(LayerMutation):
    """Two layers change places.

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
    """One of several mutations, drawn at random; another where that one finds no child.

    Attributes:
        mutations: those it is drawn from.
        weights: how often each is drawn, relative to the others; None for all equally often.

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
