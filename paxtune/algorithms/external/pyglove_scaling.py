"""PyGlove's random draws and mutations, on the scales of ranges.

PyGlove's own draw numbers uniformly from a range, whatever its scale.
"""

import random
from typing import Any

import pyglove as pg

from paxtune.algorithms.encoding.sampling import changeable_points, draw, mutate
from paxtune.search_space.decisions import from_dna, to_dna


class ScaledRandom(pg.DNAGenerator):
    """Draws DNAs at random, numbers on their scale: the counterpart of `pg.geno.Random`.

    Attributes:
        seed: seed of the draws; None for a different one each time.
    """

    seed: int | None = None

    def _setup(self) -> None:
        self._rng = random.Random(self.seed)

    def _propose(self) -> pg.DNA:
        return to_dna(self.dna_spec, draw(self.dna_spec, self._rng))

    def _replay(self, trial_id: int, dna: pg.DNA, reward: Any) -> None:
        draw(self.dna_spec, self._rng)


class ScaledMutator(pg.evolution.Mutator):
    """Changes one decision, a number on its scale: the counterpart of
    `pg.evolution.mutators.Uniform`.

    A choice of several candidates is one decision, of which one candidate is replaced. If nothing
    can change, the child equals its parent.

    Attributes:
        seed: seed of the changes; None for a different one each time.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([1, 2])))
        >>> ScaledMutator(seed=0).mutate(to_dna(spec, {'x': 0}))
        DNA(1)
    """

    seed: int | None = None

    def _on_bound(self) -> None:
        super()._on_bound()
        self._rng = random.Random(self.seed)

    def mutate(self, dna: pg.DNA, step: int = 0) -> pg.DNA:
        spec = dna.spec
        decisions = from_dna(spec, dna)
        if changeable_points(spec, decisions):
            decisions = mutate(spec, decisions, self._rng)
        return to_dna(spec, decisions)


def scale_and_seed(value: Any, seed: int) -> Any:
    """Seeds all parts of a PyGlove algorithm, and makes them draw on the scales of ranges.

    The algorithm is changed in place. Every `pg.geno.Random` becomes a `ScaledRandom`. A field
    `seed` that is None gets a number.
    """
    return _prepared(value, random.Random(seed))


def _prepared(value: Any, rng: random.Random) -> Any:
    if type(value) is pg.geno.Random:
        return ScaledRandom(rng.getrandbits(31) if value.seed is None else value.seed)
    if isinstance(value, tuple):
        parts = [_prepared(part, rng) for part in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else tuple(parts)
    if not isinstance(value, pg.Object | pg.List | pg.Dict):
        return value
    changed = {}
    for name, child in list(value.sym_items()):
        new = _prepared(child, rng)
        if name == 'seed' and child is None and isinstance(value, pg.Object):
            new = rng.getrandbits(31)
        if new is not child:
            changed[name] = new
    if changed:
        # Rebinding also resets state that depends on the fields, above all random numbers.
        value.rebind(changed, raise_on_no_change=False)
    return value
