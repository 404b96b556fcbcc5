"""Usual values of layers, by the width of the model and the length of sequences."""

from typing import Any

import pyglove as pg

from search_spaces.lm import C4Small
from trainer.layers import Attention, FeedForward, GatedFeedForward, Gaussian
from trainer.symbolic.usual_values import usual_values

BLOCK = 'task.model.stack.layers[0]'


def usual(path: str, changes: dict[str, Any]) -> tuple[Any, Any, Any]:
    found = usual_values(C4Small().rebind(changes, raise_on_no_change=False))[path]
    return found.value, found.low, found.high


def test_usual_heads_divide_the_width() -> None:
    path = f'{BLOCK}.attention.num_heads'
    assert usual(path, {}) == (12, 6, 24)
    assert usual(path, {'task.model.embedding.dims': pg.oneof([256, 1024])}) == (8, 2, 32)
    attention = Attention(num_heads=pg.oneof([8, 32]))
    assert usual(f'{BLOCK}.attention.num_kv_heads', {f'{BLOCK}.attention': attention}) == (4, 1, 32)


def test_usual_hidden_width_is_a_multiple_of_the_width() -> None:
    both = pg.oneof([FeedForward(hidden_dims=8), GatedFeedForward(hidden_dims=8)])
    changes = {f'{BLOCK}.feed_forward': both}
    assert usual(f'{BLOCK}.feed_forward[=0/2].hidden_dims', changes) == (3072, 2304, 3072)
    assert usual(f'{BLOCK}.feed_forward[=1/2].hidden_dims', changes) == (2048, 1920, 2688)


def test_usual_window_is_at_most_half_of_the_sequence() -> None:
    path = f'{BLOCK}.attention.window'
    assert usual(path, {'train_input.sequence_length': 64}) == (32, 16, 128)
    assert usual(path, {'train_input.sequence_length': 32_768})[0] == 1024


def test_usual_deviation_depends_on_the_size_that_divides_it() -> None:
    assert Gaussian().usual_values(None)['scale'].value == 0.02
    assert Gaussian(root_of='inputs').usual_values(None)['scale'].value == 1.0
