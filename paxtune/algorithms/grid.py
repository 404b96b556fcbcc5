import hashlib
import math

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Exhausted, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.enumeration import enumeration
from paxtune.search_space.decisions import decision_points, size
from paxtune.search_space.labels import parameter_path
from trainer.symbolic.component import require_at_least
from trainer.symbolic.errors import UserError

_ROUNDS = 4


class Grid(Algorithm):
    """Tries every experiment, with some values of each range; the last decision changes fastest.

    Infeasible and tried experiments are skipped. All candidates, combinations and orders of choices
    are tried, with all of their conditional decisions.

    Attributes:
        points_per_range: number of values of a range, evenly on its scale, both bounds included.
            Integer ranges with no more values are tried completely. None: every integer of every
            range, and no range of floats.
        shuffle: try experiments in a random order that the seed determines, so that a part of the
            grid is a sample of it. The order takes no memory.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1.0, 'log')))
        >>> Grid(points_per_range=3).suggest(SuggestionContext(spec, 0, 1, list)).decisions
        {'rate': 0.0001}
    """

    points_per_range: int | None = 5
    shuffle: bool = False

    def check(self) -> None:
        require_at_least(self, 1, 'points_per_range')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        for point in decision_points(spec) if self.points_per_range is None else ():
            if size(point) is None and isinstance(point, pg.geno.Float):
                raise UserError(
                    f'{parameter_path(point.id.path)}: Grid(points_per_range=None) tries '
                    'every value, and a range of floats has infinitely many. Set points_per_range, '
                    'list values with pg.oneof([…]), or use RandomSearch or QuasiRandom.'
                )

    def suggest(self, context: SuggestionContext) -> Suggestion:
        grid = enumeration(context.spec, self.points_per_range)
        name = f'grid_shuffled_by_{context.seed}' if self.shuffle else 'grid'
        for position in range(_first_position(context, name, grid.size), grid.size):
            index = shuffled(position, grid.size, context.seed) if self.shuffle else position
            decisions = grid.at(index)
            if context.is_eligible(decisions):
                return Suggestion(decisions, algorithm_state={name: f'{position}/{grid.size}'})
        raise Exhausted


def _first_position(context: SuggestionContext, name: str, size: int) -> int:
    """First position after those that this study has tried, in a grid of the same size."""
    tried = [
        trial.algorithm_state[name].split('/')
        for trial in context.observations
        if trial.id > 0 and name in trial.algorithm_state
    ]
    return max((int(position) + 1 for position, total in tried if int(total) == size), default=0)


def shuffled(index: int, size: int, seed: int) -> int:
    """Image of an index under a pseudo-random permutation of range(size).

    A Feistel network: each round adds a hash of one half of the index to the other half, which is
    invertible. An image outside the range is permuted again. (`trainer.inputs.permutation` imports
    JAX, and is limited to sizes below 2⁶⁴.)
    """
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    while True:
        left, right = divmod(index, columns)
        for i in range(_ROUNDS):
            left = (left + _hash(seed, 2 * i, right)) % rows
            right = (right + _hash(seed, 2 * i + 1, left)) % columns
        index = left * columns + right
        if index < size:
            return index


def _hash(*numbers: int) -> int:
    digest = hashlib.blake2b('/'.join(map(str, numbers)).encode(), digest_size=32)
    return int.from_bytes(digest.digest(), 'little')
