"""Sweeps over all of a finite space."""

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Request, Suggestion
from paxtune.algorithms.sampling import first_open
from paxtune.decisions import is_integer, points
from paxtune.labels import path
from trainer.errors import UserError


class Sweeping(Algorithm):
    """Tries every experiment of a finite space, in order: the last decision changes fastest.

    Infeasible ones are left out.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a', 'b'])))
        >>> Sweeping().suggest(Request(spec, 0, 1, list)).decisions
        {'x': 0}
    """

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        for point in points(spec):
            if isinstance(point, pg.geno.Float) and not is_integer(point):
                raise UserError(
                    f'{path(point.id.path)}: Sweeping tries every value, and there are countless '
                    f'from {point.min_value} to {point.max_value}. List some, pg.oneof([…]), or '
                    'use another algorithm, such as RandomSearch.'
                )

    def suggest(self, request: Request) -> Suggestion:
        return Suggestion(first_open(request))
