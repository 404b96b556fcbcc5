"""Architecture spaces: their content, and a search of each."""

import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paxtune.algorithms import NSGA2, Algorithm, GPBandit, RandomSearch, RegularizedEvolution
from paxtune.algorithms.encoding.sampling import draw
from paxtune.api import tune
from paxtune.experiment import Tunable
from paxtune.objectives.limits import Limit
from paxtune.search_space.space import Space
from search_spaces import lm, nas, vision
from trainer.layers import (
    Attention,
    DepthwiseConv1D,
    FeedForward,
    GatedFeedForward,
    Identity,
    InvertedBottleneck,
    Layer,
    SharedWithPrevious,
    TransformerBlock,
)
from trainer.program.costs import static_costs
from trainer.symbolic.component import components
from trainer.symbolic.overrides import smoke

SEARCHES = [
    (nas.StdlibNas, NSGA2(population_size=2)),
    (nas.PrimerNas, RegularizedEvolution(population_size=2, tournament_size=2)),
    (nas.ElasticNas, GPBandit(num_initial=2)),
    (vision.DigitsNas, RandomSearch()),
]


def drawn(experiment: Tunable, count: int) -> list[Any]:
    """Random experiments of a space."""
    space, rng = Space(experiment), random.Random(0)
    return [space.materialize(draw(space.spec, rng)) for _ in range(count)]


def num_params(experiment: Any) -> float:
    return static_costs(experiment)['num_params']


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ('make', 'algorithm'), SEARCHES, ids=[make.__name__ for make, _ in SEARCHES]
)
def test_an_algorithm_searches_each_space_within_its_limit(
    make: Callable[[], Tunable], algorithm: Algorithm, tmp_path: Path
) -> None:
    experiment = smoke(make())
    at_most = statistics.median(map(num_params, drawn(experiment, 6)))
    changes: dict[str, Any] = {'limits': [Limit('num_params', at_most=at_most)], 'scheduler': None}
    if isinstance(algorithm, GPBandit):  # It models one reward.
        changes['objective'] = experiment.search.rewards[0]
    with tune(
        experiment, num_trials=3, algorithm=algorithm, job_log_dir=tmp_path, **changes
    ) as study:
        assert len(study.trials) == 3
        assert [trial.status for trial in study.trials] == ['completed'] * 3
        assert all(trial.metrics['num_params'] <= at_most for trial in study.trials)
        assert len({str(trial.decisions) for trial in study.trials}) == 3
        assert study.pareto_front
        if isinstance(algorithm, RegularizedEvolution | NSGA2):
            assert study.trials[-1].lineage.parent in (1, 2)


@pytest.mark.slow
def test_a_layer_of_a_decoder_is_of_any_kind() -> None:
    found = {type(layer) for each in drawn(nas.StdlibNas(), 12) for layer in components(each.task)}
    kinds = {Attention, FeedForward, GatedFeedForward, DepthwiseConv1D, SharedWithPrevious}
    assert kinds | {Identity} <= found


def test_the_first_layer_shares_with_no_other() -> None:
    choices = nas.decoder(3, [Identity(), SharedWithPrevious()]).layers
    assert [len(choice.candidates) for choice in choices] == [1, 2, 2]


def test_each_layer_chooses_for_itself() -> None:
    (one,) = drawn(nas.StdlibNas(), 1)
    assert len({repr(layer) for layer in one.task.model.stack.layers}) > 2


def test_the_limit_is_what_the_uniform_model_has() -> None:
    uniform = lm.StdlibTunable().rebind({'task.model.stack.repeats': 2})
    assert {num_params(each) for each in drawn(uniform, 4)} == {nas.BASELINE_PARAMS}


def test_primer_is_in_the_space_that_is_named_after_it() -> None:
    ids = Space(nas.PrimerNas()).ids
    for name in ('query_convolution', 'key_convolution', 'value_convolution', 'feed_forward'):
        assert any(path.endswith(name) for path in ids), name
    blocks = [each.task.model.stack.layers[0] for each in drawn(nas.PrimerNas(), 30)]
    assert all(isinstance(block, TransformerBlock) for block in blocks)
    assert {'relu', 'squared_relu'} <= {block.feed_forward.activation for block in blocks}
    widths = {getattr(block.attention.value_convolution, 'width', None) for block in blocks}
    assert widths == {None, 3, 5}


@pytest.mark.slow
def test_an_elastic_model_is_of_any_width_and_depth() -> None:
    models = [each.task.model for each in drawn(nas.ElasticNas(), 40)]
    assert {model.embedding.dims for model in models} == {32, 48, 64, 96}
    assert {len(model.stack.layers) for model in models} == {1, 2, 3, 4}
    ratios = [[b.feed_forward.hidden_ratio for b in model.stack.layers] for model in models]
    assert any(len(set(each)) == 3 for each in ratios)


def test_a_network_for_digits_is_of_inverted_bottlenecks() -> None:
    layers: list[Layer] = drawn(vision.DigitsNas(), 1)[0].task.model.layers
    blocks = [layer for layer in layers if isinstance(layer, InvertedBottleneck)]
    assert len(blocks) == 6
    assert len({(str(block.kernel_size), block.expansion, block.skip) for block in blocks}) > 2
