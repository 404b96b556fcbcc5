"""Spaces and models of mixers with a state: sizes, limits, and searches that are killed."""

import signal
from pathlib import Path
from typing import Any

import pytest

from paxtune.search_space.space import Space
from search_spaces import hybrids, lm, nas
from tests.factories.searches import told, trials_of
from tests.search_spaces.test_nas import drawn
from tests.servers.processes import command, passed
from trainer.layers import (
    RGLRU,
    Attention,
    DepthwiseConv1D,
    Experts,
    FeedForward,
    GatedDeltaNet,
    GatedFeedForward,
    LatentAttention,
    Mamba2,
)
from trainer.program.costs import static_costs

ALGORITHMS = {
    'default': [],
    'evolution': ['--algorithm=RegularizedEvolution(population_size=2, tournament_size=2)'],
    'nsga-ii': ['--algorithm=NSGA2(population_size=2)'],
}


def test_recurrent_gemma_has_the_published_number_of_parameters() -> None:
    width, vocab_size, layers, hidden, heads = 2560, 256_000, 26, 3 * 2560, 10
    attending = layers // 3
    head = width // heads
    gates = 2 * (heads * head**2 + width)
    recurrent = 3 * (width * width + width) + gates + (4 * width + width) + width
    attention = 2 * width**2 + width + 2 * width * head
    feed_forward = 3 * width * hidden + 2 * hidden + width
    norms = (2 * layers + 1) * width
    published = (
        vocab_size * width
        + (layers - attending) * recurrent
        + attending * attention
        + layers * feed_forward
        + norms
    )
    costs = static_costs(hybrids.RecurrentGemma2B())
    assert costs['num_params'] == pytest.approx(published, rel=1e-3)
    # Products of parameters, forward and backward, and less than half as many for positions.
    assert 6 * published < costs['flops_per_token'] < 9 * published


def test_the_limits_of_mixers_are_twice_the_uniform_model() -> None:
    (uniform, *_) = drawn(lm.StdlibTunable().rebind({'task.model.stack.repeats': 2}), 1)
    costs = static_costs(uniform)
    assert costs['num_params'] == nas.BASELINE_PARAMS
    assert costs['flops_per_token'] == nas.BASELINE_FLOPS


def test_a_block_of_a_mixer_space_has_any_mixer() -> None:
    blocks: list[Any] = []
    for each in drawn(nas.MixerNas(), 20):
        blocks += each.task.model.stack.layers
    found = {type(block.attention) for block in blocks}
    assert found == {Attention, LatentAttention, RGLRU, Mamba2, GatedDeltaNet, DepthwiseConv1D}
    channels = {type(block.feed_forward) for block in blocks}
    assert channels == {FeedForward, GatedFeedForward, Experts}
    assert len(Space(nas.MixerNas()).ids) > 4 * 8


@pytest.mark.slow(reason='trains six small models for each algorithm, in four processes')
@pytest.mark.parametrize('name', ALGORITHMS)
def test_a_killed_search_of_mixers_ends_as_the_undisturbed_one(name: str, tmp_path: Path) -> None:
    def search(directory: str, kill: str | None = None) -> Any:
        flags = ['--exp=nas.MixerNas', '--smoke', '--num_trials=3', *ALGORITHMS[name]]
        flags += [f'--set=task.model.stack.layers[{at}]=Identity()' for at in (1, 2, 3)]
        return command('paxtune.search', *flags, f'--job_log_dir={tmp_path / directory}', kill=kill)

    passed(search('whole'))
    for event in ('saved:1', 'saved:3'):
        killed = search('killed', event)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    passed(search('killed'))
    whole = told(trials_of(tmp_path / 'whole'))
    assert told(trials_of(tmp_path / 'killed')) == whole
    assert [state for _, state, *_ in whole] == ['COMPLETED'] * 3
