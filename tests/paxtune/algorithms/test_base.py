import pyglove as pg
import pytest

from paxtune.algorithms import (
    Observation,
    SuggestionContext,
)


@pytest.mark.parametrize(('number', 'seen'), [(-3, False), (0, False), (1, True)])
def test_trials_of_earlier_studies_do_not_count_as_tried(number, seen):
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0)))
    history = [Observation(number, {'x': 0.5}, 'completed', (1.0,))]
    assert SuggestionContext(spec, 0, 2, lambda: history).seen({'x': 0.5}) == seen
