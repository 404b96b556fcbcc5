"""A checkpoint of adapters lacks the frozen parameters, which the run loads again."""

import contextlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.runs import final_state, measured, resumed_after_an_interruption
from tests.factories.tiny import experiment
from trainer.checkpoints.checkpoint import CheckpointStore, newest_checkpoint
from trainer.checkpoints.manifest import Progress
from trainer.checkpoints.reader import CheckpointReader
from trainer.checkpoints.retention import RetentionPolicy
from trainer.experiment import Checkpoints, Experiment
from trainer.layers.lora import LoRA, is_adapter
from trainer.learner.paths import leaves
from trainer.loop.checkpoint_jobs import process_one
from trainer.program.setup import compiled, localized
from trainer.symbolic.errors import UserError
from trainer.warm_start_rules import WarmStart


def adapted(**fields: Any) -> Experiment:
    lora = LoRA(2, targets=[r'.*\.(query|output|up|down)'])
    return experiment(task__adapters=lora, task__learner__ema_decay=0.5, **fields)


def assert_equal(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(one), jax.device_get(other))


def test_a_checkpoint_has_adapters_alone(tmp_path: Path) -> None:
    program, values = compiled(localized(adapted()))
    state = program.init(program.random_key(0), values)
    with contextlib.closing(CheckpointStore(tmp_path, RetentionPolicy(Checkpoints()))) as store:
        store.save(1, state, Progress())
        store.wait()
        again = store.restore(program.abstract_state, lambda: state.params)
        assert again is not None
        assert_equal(again.state, state)
        other = program.init(program.random_key(1), values).params
        with pytest.raises(UserError, match='has adapters of other frozen parameters: params'):
            store.restore(program.abstract_state, lambda: other)
    found = newest_checkpoint(tmp_path)
    assert found is not None
    params = [name for name in CheckpointReader(found).shapes if name.startswith('params')]
    assert len(params) == 8 and all(map(is_adapter, params))


@pytest.mark.slow
def test_a_run_of_adapters_resumes_beside_its_source(tmp_path: Path) -> None:
    measured(experiment(num_steps=2), tmp_path / 'source')
    source = str(tmp_path / 'source' / 'checkpoints')
    made = adapted(num_steps=5, train__init_from_checkpoint=source)
    measured(made, tmp_path / 'whole')
    resumed_after_an_interruption(made, tmp_path / 'parts')
    states = [final_state(made, tmp_path / name) for name in ('whole', 'parts')]
    assert_equal(*states)
    frozen = {p: x for p, x in leaves(states[0].params).items() if not is_adapter(p[-1])}
    begun = final_state(experiment(), tmp_path / 'source')
    for path, leaf in leaves(begun.params).items():
        np.testing.assert_array_equal(frozen[path], leaf)
    # An evaluation of the finished run loads both.
    found: list[Any] = []
    process_one('eval', made, tmp_path / 'whole', lambda step, metrics: found.append(metrics))
    assert np.isfinite(found[0]['eval/loss'])
    # The source has gone on: its newest checkpoint has other parameters.
    measured(experiment(num_steps=3), tmp_path / 'source')
    with pytest.raises(UserError, match='has adapters of other frozen parameters'):
        measured(made, tmp_path / 'parts')


@pytest.mark.slow
def test_a_warm_start_begins_with_adapters_and_their_frozen_parameters(tmp_path: Path) -> None:
    measured(experiment(num_steps=2), tmp_path / 'source')
    source = str(tmp_path / 'source' / 'checkpoints')
    made = adapted(num_steps=3, train__init_from_checkpoint=source)
    measured(made, tmp_path / 'first')
    first = WarmStart(str(tmp_path / 'first' / 'checkpoints'))
    starts = [first, WarmStart(source)]
    still: dict[str, Any] = {'num_steps': 1, 'task__learner__learning_rate': 0.0}
    measured(adapted(train__init_from_checkpoint=starts, **still), tmp_path / 'second')
    again = adapted(train__init_from_checkpoint=starts, **still)
    assert_equal(
        final_state(again, tmp_path / 'second').params, final_state(made, tmp_path / 'first').params
    )
    alone = adapted(train__init_from_checkpoint=[first], **still)
    with pytest.raises(UserError, match=r'has adapters alone, without embedding\.table: add the'):
        measured(alone, tmp_path / 'third')
