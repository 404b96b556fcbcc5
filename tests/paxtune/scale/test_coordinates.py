"""Coordinate checks, and models at other widths."""

import pyglove as pg
import pytest

from paxtune.scale.coordinates import LOGITS, RESIDUAL, coordinates, slopes
from paxtune.scale.figures import coordinate_figure
from paxtune.scale.widths import resized, widths_at, with_width_scaling
from search_spaces.lm import StdlibTunable
from tests.factories.tiny import experiment
from trainer.symbolic.component import bind
from trainer.symbolic.errors import UserError
from trainer.symbolic.overrides import replaced


@pytest.mark.slow
def test_activations_change_equally_at_each_width_with_scaling_alone() -> None:
    made = replaced(experiment(), {'task.learner.learning_rate': 0.03}, 'test')
    found = coordinates(made, [16, 128], num_steps=3)
    at_end = {(s.is_scaled, s.activation): s.slope for s in slopes(found) if s.step == 3}
    assert at_end[False, RESIDUAL] > 0.6 and at_end[False, LOGITS] > 0.3
    assert abs(at_end[True, RESIDUAL]) < 0.2 and at_end[True, LOGITS] < 0.1
    of_base = {(c.is_scaled, c.activation, c.step): c.change for c in found if c.width == 16}
    for activation in (RESIDUAL, LOGITS):
        assert of_base[True, activation, 3] == of_base[False, activation, 3] > 0
    drawn = coordinate_figure(found)
    assert len(drawn.data) == 4 and all(len(trace.x) == 2 for trace in drawn.data)


def test_all_widths_change_in_proportion_in_candidates_too() -> None:
    found = widths_at(StdlibTunable(), 32)
    assert sorted(found.values()) == [32, 64, 96]
    small = resized(StdlibTunable(), 32)
    assert sorted(widths_at(small, 32).values()) == [32, 64, 96]
    scaled = with_width_scaling(experiment(), 8).task.learner.width_scaling
    assert scaled is not None
    assert dict(scaled.base) == {
        'task.model.embedding.dims': 8,
        'task.model.stack.layers[0].feed_forward.hidden_dims': 16,
    }


def test_impossible_widths_are_refused() -> None:
    hidden = 'task.model.stack.layers[0].feed_forward.hidden_dims'
    with pytest.raises(UserError, match='hidden_dims is 40 at width 16, which is no integer at'):
        widths_at(replaced(experiment(), {hidden: 40}, 'test'), 3)
    with pytest.raises(UserError, match='dims must be at least 1'):
        resized(experiment(), 0)
    of_layers = {hidden: pg.oneof([32, 64])}
    with pytest.raises(UserError, match='hidden_dims is a decision, and its width is open: fix it'):
        widths_at(bind(experiment(), of_layers), 8)


def test_another_width_has_no_scaling_of_the_experiment() -> None:
    scaled = with_width_scaling(experiment(), 8)
    assert resized(scaled, 8).task.learner.width_scaling is None
