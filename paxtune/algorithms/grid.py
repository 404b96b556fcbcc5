"""Grids: all of a space, or of some values of its ranges."""

import hashlib
import math

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Exhausted, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.enumeration import ways
from paxtune.search_space.decisions import is_integer, points
from paxtune.search_space.labels import path
from trainer.symbolic.errors import UserError

_ROUNDS = 4


class Grid(Algorithm):
    """Tries every experiment, with some values of each range: the last decision changes fastest.

    What is infeasible, or was tried already, is left out. Of the choices, all candidates, all
    combinations and all orders are tried, and all that they open.

    Attributes:
        points_per_range: how many values of a range are tried, evenly on its scale, both ends among
            them. Ranges of integers that hold no more are tried entirely. None: every integer of
            every range; then there may be no range of floats.
        shuffle: whether the order is drawn from the seed, so that a part of the grid is a sample of
            it. The grid is not held in memory.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1.0, 'log')))
        >>> Grid(points_per_range=3).suggest(SuggestionContext(spec, 0, 1, list)).decisions
        {'rate': 0.0001}
    """

    points_per_range: int | None = 5
    shuffle: bool = False

    def check(self) -> None:
        if self.points_per_range is not None and self.points_per_range < 1:
            raise ValueError(f'points_per_range must be at least 1: {self.points_per_range}')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        for point in points(spec) if self.points_per_range is None else ():
            if isinstance(point, pg.geno.Float) and not is_integer(point):
                raise UserError(
                    f'{path(point.id.path)}: Grid(points_per_range=None) tries every value, and '
                    f'there are countless from {point.min_value} to {point.max_value}. Give '
                    'points_per_range, or list some, pg.oneof([…]), or use another algorithm, such '
                    'as RandomSearch or QuasiRandom.'
                )

    def suggest(self, context: SuggestionContext) -> Suggestion:
        grid = ways(context.spec, self.points_per_range)
        name = f'grid_shuffled_by_{context.seed}' if self.shuffle else 'grid'
        for place in range(_first_place(context, name, grid.size), grid.size):
            index = _shuffled(place, grid.size, context.seed) if self.shuffle else place
            decisions = grid.at(index)
            if context.is_eligible(decisions):
                return Suggestion(decisions, algorithm_state={name: f'{place}/{grid.size}'})
        raise Exhausted


def _first_place(context: SuggestionContext, name: str, size: int) -> int:
    """The place after all those that this study's trials had in a grid of the same size."""
    algorithm_states = [
        trial.algorithm_state[name]
        for trial in context.observations
        if trial.id > 0 and name in trial.algorithm_state
    ]
    known = [algorithm_state.split('/') for algorithm_state in algorithm_states]
    return max((int(place) + 1 for place, whole in known if int(whole) == size), default=0)


def _shuffled(place: int, size: int, seed: int) -> int:
    """The image of a place under a permutation of range(size) that a seed draws.

    A Feistel network: each round adds a hash of one half of the place to the other half, which
    could be undone, so no two places meet. What comes to lie outside goes through it again. (As
    `trainer.inputs.permutation`, which imports JAX, and knows sizes below 2⁶⁴ only.)
    """
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    while True:
        left, right = divmod(place, columns)
        for i in range(_ROUNDS):
            left = (left + _hash(seed, 2 * i, right)) % rows
            right = (right + _hash(seed, 2 * i + 1, left)) % columns
        place = left * columns + right
        if place < size:
            return place


def _hash(*numbers: int) -> int:
    digest = hashlib.blake2b('/'.join(map(str, numbers)).encode(), digest_size=32)
    return int.from_bytes(digest.digest(), 'little')
