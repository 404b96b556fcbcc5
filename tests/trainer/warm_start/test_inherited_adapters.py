"""Weights of a run with adapters, in runs that begin with it."""

import contextlib
import dataclasses
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from tests.factories import tiny
from tests.trainer.warm_start.test_warm_start_rules import written
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.checkpoints.manifest import Progress
from trainer.checkpoints.retention import RetentionPolicy
from trainer.experiment import Checkpoints, Experiment
from trainer.layers.base import PARAMS, ForwardContext, forward_context
from trainer.layers.lora import LoRA, is_adapter
from trainer.learner.paths import leaves
from trainer.program.setup import compiled, localized
from trainer.state import TrainState
from trainer.symbolic.errors import UserError
from trainer.warm_start.warm_start import (
    WarmStartLoader,
    frozen_parameters,
    warm_start_sources,
)
from trainer.warm_start_rules import Inheritance, LoadRule, Starts, WarmStart

IDS = np.arange(16).reshape(2, 8) % tiny.VOCAB
TARGETS = [r'.*\.(query|output|up|down)']


def lora(rank: int = 2, targets: list[str] = TARGETS, **fields: Any) -> Experiment:
    return tiny.experiment(task__adapters=LoRA(rank, targets=targets, **fields))


def begun(made: Experiment, starts: Starts) -> TrainState:
    """The state that a run begins with."""
    made = made.clone(deep=True)
    made.rebind({'train.init_from_checkpoint': starts})
    program, values = compiled(localized(made))
    loader = WarmStartLoader(made, warm_start_sources(made, '/nowhere'), program)
    return jax.device_get(loader.load(program.random_key(5), values))


def parent_of(made: Experiment, base: str, directory: Path) -> tuple[str, TrainState]:
    """Writes a run of adapters that are drawn, beside a base; its checkpoints, and its state."""
    state = begun(made, base)
    rng = np.random.default_rng(0)
    drawn = jax.tree_util.tree_map_with_path(
        lambda path, x: rng.normal(size=x.shape).astype(x.dtype) if is_adapter(path[-1].key) else x,
        state.params,
    )
    state = dataclasses.replace(state, params=drawn)
    with contextlib.closing(CheckpointStore(directory, RetentionPolicy(Checkpoints()))) as store:
        store.save(3, jax.device_put(state), Progress())
    return str(directory), state


@pytest.fixture(scope='module')
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp('base')
    written(tiny.experiment(), directory)
    return str(directory)


@pytest.fixture(scope='module')
def parent(base: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, TrainState]:
    return parent_of(lora(), base, tmp_path_factory.mktemp('parent'))


def logits(made: Experiment, state: TrainState) -> Any:
    with forward_context(ForwardContext(adapters=made.task.adapters)):
        return np.asarray(made.task.model.module().apply({PARAMS: state.params}, IDS))


def assert_same(one: TrainState, other: TrainState) -> None:
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)


def test_a_child_begins_with_adapters_and_base_of_its_parent(
    base: str, parent: tuple[str, TrainState], caplog: pytest.LogCaptureFixture
) -> None:
    directory, state = parent
    assert_same(begun(lora(), Inheritance(directory, base)), state)
    assert_same(begun(lora(), [WarmStart(directory), WarmStart(base)]), state)
    assert 'were trained beside another' not in caplog.text


@pytest.mark.slow
def test_a_child_of_quantized_kernels_begins_like_its_parent(
    base: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = lora(quantized='int8')
    directory, state = parent_of(made, base, tmp_path)
    assert_same(begun(made, Inheritance(directory, base)), state)
    assert 'were trained beside another' not in caplog.text


@pytest.mark.slow
def test_a_child_of_a_larger_rank_computes_the_function_of_its_parent(
    base: str, parent: tuple[str, TrainState]
) -> None:
    directory, state = parent
    expected = logits(lora(), state)
    larger = begun(lora(3), Inheritance(directory, base))
    np.testing.assert_allclose(logits(lora(3), larger), expected, atol=1e-4)
    smaller = leaves(begun(lora(1), Inheritance(directory, base)).params)
    for path, leaf in leaves(state.params).items():
        if path[-1].endswith('_lora_a'):
            np.testing.assert_array_equal(smaller[path], leaf[..., :1])


def test_other_targets_begin_anew_beside_the_inherited_ones(
    base: str, parent: tuple[str, TrainState], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    directory, state = parent
    made = lora(targets=[r'.*\.(up|value)'])
    made.rebind({'train.init_from_checkpoint': Inheritance(directory, base)})
    program, values = compiled(localized(made))
    loader = WarmStartLoader(made, warm_start_sources(made, '/nowhere'), program)
    found = leaves(jax.device_get(loader.load(program.random_key(5), values)).params)
    before = leaves(state.params)
    assert {path[-1] for path in found.keys() - before.keys()} == {'value_lora_a', 'value_lora_b'}
    for path in found.keys() & before.keys():
        np.testing.assert_array_equal(found[path], before[path])
    with caplog.at_level(logging.INFO):
        loader.write_provenance(epath.Path(tmp_path))
    assert '6 adapters of' in caplog.text
    assert '2 arrays are new' in caplog.text


def test_adapters_begin_anew_beside_the_kernels_of_a_parent_without(base: str) -> None:
    found = leaves(begun(lora(), Inheritance(base)).params)
    for path, leaf in leaves(begun(tiny.experiment(), base).params).items():
        np.testing.assert_array_equal(found[path], leaf)
    assert all(not leaf.any() for path, leaf in found.items() if path[-1].endswith('_lora_b'))


def test_adapters_beside_another_base_are_in_the_log(
    parent: tuple[str, TrainState], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tiny.experiment(), tmp_path, seed=1)
    begun(lora(), Inheritance(parent[0], str(tmp_path)))
    assert 'were trained beside another params.' in caplog.text


def test_a_child_resumes_without_its_parent(
    base: str, parent: tuple[str, TrainState], tmp_path: Path
) -> None:
    made = lora()
    made.rebind({'train.init_from_checkpoint': Inheritance(str(tmp_path / 'gone'), base)})
    program, values = compiled(localized(made))
    found = leaves(jax.device_get(frozen_parameters(made, program, values)()))
    for path, leaf in leaves(parent[1].params).items():
        if not is_adapter(path[-1]):
            np.testing.assert_array_equal(found[path], leaf)


@pytest.mark.parametrize(
    ('made', 'kind', 'message'),
    [
        (tiny.experiment(), 'child', 'has adapters alone, and the run has none: set task.adapters'),
        (tiny.experiment(), 'both', 'has adapters alone, and the run has none: set task.adapters'),
        (tiny.experiment(), 'path', 'has adapters alone, and the run has none: set task.adapters'),
        (lora(), 'alone', 'has adapters alone: give base the source of their frozen parameters'),
        (lora(3), 'both', r'query_lora_a \(16, 3\): .* has the shape \(16, 2\) there'),
        (lora(targets=[r'.*\.up']), 'both', 'has the adapter .*, and the run has no place for it'),
        (lora(targets=[r'.*\.value']), 'child', 'have no adapter in common'),
        (lora(), 'rules', 'has the adapter .*, and the run has no place for it'),
    ],
)
def test_adapters_that_have_no_place_are_refused(
    made: Experiment, kind: str, message: str, base: str, parent: tuple[str, TrainState]
) -> None:
    directory = parent[0]
    starts: dict[str, Starts] = {
        'child': Inheritance(directory, base),
        'alone': Inheritance(directory),
        'both': [WarmStart(directory), WarmStart(base)],
        'path': directory,
        'rules': [WarmStart(directory, [LoadRule('(.*)_lora_a', r'\1_a')]), WarmStart(base)],
    }
    with pytest.raises(UserError, match=message) as caught:
        begun(made, starts[kind])
    assert str(caught.value).startswith('train.init_from_checkpoint')
