"""Warm starts by rules: what is loaded from where, into layers that are scanned or not."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from tests.factories import tiny_images
from tests.factories.runs import measured
from tests.factories.tiny import experiment
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.checkpoints.manifest import Progress
from trainer.checkpoints.reader import CheckpointReader
from trainer.checkpoints.retention import RetentionPolicy
from trainer.experiment import Checkpoints, Experiment, TrainLoop
from trainer.layers import (
    Attention,
    BatchNorm,
    Chain,
    Conv2D,
    Embedding,
    FeedForward,
    GlobalPool,
    Layer,
    Linear,
    Residual,
    Stack,
    TransformerLm,
)
from trainer.layers.stack import per_layer
from trainer.learner import SGD
from trainer.program.setup import compiled, localized
from trainer.runtime.metric_writer import read_metrics
from trainer.state import TrainState
from trainer.symbolic.errors import UserError
from trainer.symbolic.overrides import override
from trainer.warm_start.layered import layered
from trainer.warm_start.warm_start import WarmStartLoader, warm_start_sources
from trainer.warm_start.warm_start_plan import planned
from trainer.warm_start_rules import FILE, LoadRule, WarmStart

STEP = 7


def stacks(scan: str, repeats: int = 2, **fields: Any) -> Experiment:
    """The tiny experiment with several layers, and averages."""
    return experiment(
        task__model__stack__repeats=repeats,
        task__model__stack__scan=scan,
        task__learner__ema_decay=0.9,
        **fields,
    )


def written(made: Experiment, directory: Path, seed: int = 0) -> TrainState:
    """Writes a checkpoint of arrays that are drawn, each otherwise, and returns them."""
    program, values = compiled(localized(made))
    rng = np.random.default_rng(seed)
    drawn = jax.tree.map(
        lambda x: jax.device_put(rng.normal(size=x.shape).astype(x.dtype), x.sharding),
        program.init(program.random_key(0), values),
    )
    drawn = drawn.replace(step=drawn.step + STEP - int(drawn.step))
    with contextlib.closing(
        CheckpointStore(directory, RetentionPolicy(Checkpoints()))
    ) as checkpoints:
        checkpoints.save(STEP, drawn, Progress(spent={'tokens': 70, 'seconds': 0.5}))
    return jax.device_get(drawn)


def started(made: Experiment, *starts: WarmStart, to: Path | None = None) -> TrainState:
    """The state that a run of `made` begins with."""
    made = override(made, [])
    made.rebind({'train.init_from_checkpoint': list(starts)})
    program, values = compiled(localized(made))
    found = WarmStartLoader(made, warm_start_sources(made, '/nowhere'), program)
    state = found.load(program.random_key(5), values)
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(
        lambda x: x.sharding, program.abstract_state
    )
    if to is not None:
        found.write_provenance(epath.Path(to))
    return jax.device_get(state)


def drawn(made: Experiment) -> TrainState:
    program, values = compiled(localized(made))
    return jax.device_get(program.init(program.random_key(5), values))


def assert_equal(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.pax('CheckpointLoadingRules')
@pytest.mark.parametrize(('there', 'here'), [('always', 'never'), ('never', 'always')])
@pytest.mark.fast(1)
def test_layers_go_from_scanned_stacks_to_others_and_back(
    there: str, here: str, tmp_path: Path
) -> None:
    source = written(stacks(there), tmp_path)
    everything = WarmStart(str(tmp_path), load_optimizer=True, load_ema=True, load_step=True)
    state = started(stacks(here, num_steps=9), everything)
    for one, other in [
        (state.params, source.params),
        (state.ema_params, source.ema_params),
        (state.opt_state[0][0].mu, source.opt_state[0][0].mu),
        (state.opt_state[0][0].nu, source.opt_state[0][0].nu),
    ]:
        assert_equal(per_layer(one), per_layer(other))
    assert state.step == STEP
    assert state.opt_state[0][0].count == source.opt_state[0][0].count


@pytest.mark.slow
@pytest.mark.parametrize(('there', 'here'), [('always', 'never'), ('never', 'always')])
def test_layers_go_from_scanned_periods_to_others_and_back(
    there: Any, here: Any, tmp_path: Path
) -> None:
    def periods(scan: Any) -> Experiment:
        period: list[Layer] = [Residual(Attention(2)), Residual(FeedForward(16))]
        return experiment(
            task__model=TransformerLm(Embedding(32, 16), Stack(period, repeats=2, scan=scan))
        )

    source = written(periods(there), tmp_path)
    state = started(periods(here), WarmStart(str(tmp_path), load_optimizer=True))
    assert_equal(per_layer(state.params), per_layer(source.params))
    assert_equal(per_layer(state.opt_state[0][0].mu), per_layer(source.opt_state[0][0].mu))


def test_without_being_asked_for_the_rest_begins_anew(tmp_path: Path) -> None:
    source = written(stacks('always'), tmp_path)
    state = started(stacks('always'), WarmStart(str(tmp_path)))
    assert_equal(state.params, source.params)
    assert_equal(state.ema_params, source.params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state.opt_state))
    assert state.step == 0


@pytest.mark.pax('CheckpointLoadingRules', 'Provenance of each')
@pytest.mark.slow
def test_names_may_change_and_layers_be_drawn(tmp_path: Path) -> None:
    source = per_layer(written(stacks('always'), tmp_path).params)['stack']
    made = stacks('always', repeats=3)
    swapped = [
        LoadRule(r'stack\.layers_0\.(.*)', r'stack.layers_1.\1'),
        LoadRule(r'stack\.layers_1\.(?P<rest>.*)', r'stack.layers_0.\g<rest>'),
    ]
    state = started(made, WarmStart(str(tmp_path), swapped, ignore=['.*norm.*']), to=tmp_path)
    wanted = per_layer(drawn(made).params)
    got = per_layer(state.params)
    for here, there in (('layers_0', 'layers_1'), ('layers_1', 'layers_0')):
        assert_equal(got['stack'][here]['attention'], source[there]['attention'])
        wanted['stack'][here] |= {
            part: source[there][part] for part in ('attention', 'feed_forward')
        }
    assert_equal(got, wanted)  # What no rule matches is as it is drawn.
    told = json.loads((tmp_path / FILE).read_text())
    assert told['sources'] == [str(tmp_path / str(STEP))]
    assert told['arrays']['params.stack.layers_0.attention.key'] == {
        'source': 0,
        'name': 'params.stack.layers_1.attention.key',
    }
    assert told['arrays']['params.stack.layers_2.attention.key'] is None
    assert told['arrays']['params.stack.layers_0.attention_norm.scale'] is None


@pytest.mark.slow
def test_of_several_sources_the_first_that_matches_counts(tmp_path: Path) -> None:
    one = written(stacks('never'), tmp_path / 'one', seed=1)
    other = written(stacks('always'), tmp_path / 'other', seed=2)
    state = started(
        stacks('never'),
        WarmStart(str(tmp_path / 'one'), [LoadRule('embedding.*')]),
        WarmStart(str(tmp_path / 'other'), load_optimizer=True),
    )
    wanted = per_layer(other.params) | {'embedding': one.params['embedding']}
    assert_equal(state.params, wanted)
    moments = per_layer(other.opt_state[0][0].mu)
    moments['embedding'] = {'table': np.zeros_like(one.params['embedding']['table'])}
    assert_equal(state.opt_state[0][0].mu, moments)


def test_running_means_are_loaded_too(tmp_path: Path) -> None:
    made = tiny_images.experiment(Chain([Conv2D(4), BatchNorm(), GlobalPool(), Linear(4)]))
    source = written(made, tmp_path)
    state = started(made, WarmStart(str(tmp_path)))
    assert jax.tree.leaves(source.non_trainable)
    assert_equal(state.non_trainable, source.non_trainable)


def test_a_run_may_go_on_counting_steps(tmp_path: Path) -> None:
    written(experiment(), tmp_path / 'checkpoints')
    made = experiment(num_steps=9)
    text = f'[WarmStart("{tmp_path}/checkpoints/{STEP}", load_step=true)]'
    made = override(made, [f'train.init_from_checkpoint={text}'])
    found = measured(made, tmp_path / 'run')
    assert [each.step for each in found] == [8, 9]
    assert found[0].metrics['spent_tokens'] > 70
    assert {record['step'] for record in read_metrics(tmp_path / 'run' / 'metrics.jsonl')} == {8, 9}
    assert (tmp_path / 'run' / FILE).exists()
    made.rebind({'train.num_train_steps': STEP})
    with pytest.raises(UserError, match=r'init_from_checkpoint\[0\].load_step: .*no step would be'):
        measured(made, tmp_path / 'other')
    assert not (tmp_path / 'other').exists()


_HERE = {'params.head.kernel': (4, 2), 'params.stack.layers_0x2.up': (2, 4, 4)}


def refusal(*starts: WarmStart, there: Any = None) -> str:
    sources = [(f'x[{i}]', start, there or _HERE) for i, start in enumerate(starts)]
    with pytest.raises(UserError) as refused:
        planned(_HERE, sources)
    return str(refused.value)


def test_patterns_that_do_nothing_are_refused() -> None:
    told = refusal(WarmStart('a', [LoadRule('head')]))
    assert told.startswith("x[0].rules[0].pattern: no array is called 'head'. A pattern matches")
    told = refusal(WarmStart('a', ignore=['hea.kernel']))
    assert told.startswith("x[0].ignore[0]: no array is called 'hea.kernel'.")
    assert 'head.kernel' in told
    told = refusal(WarmStart('a'), WarmStart('b', [LoadRule('head.*')]))
    assert told.startswith(
        "x[1].rules[0].pattern: all arrays that 'head.*' matches are ignored, or match"
    )
    assert refusal(WarmStart('a', load_ema=True)).startswith('x[0].load_ema: ')


@pytest.mark.pax('CheckpointLoadingRules')
def test_all_mismatches_are_reported_at_once() -> None:
    there = {'params.top.kernel': (4, 3), 'params.stack.layers_0.up': (4, 5)}
    rules = [LoadRule('head(.*)', r'top\1'), LoadRule()]
    lines = refusal(WarmStart('/runs/a', rules), there=there).splitlines()
    assert lines[0].startswith('x[0]: /runs/a lacks arrays')
    assert lines[1:] == [
        '  head.kernel (4, 2): top.kernel has the shape (4, 3) there',
        '  stack.layers_0.up (4, 4): stack.layers_0.up has the shape (4, 5) there',
        '  stack.layers_1.up (4, 4): stack.layers_1.up is missing',
    ]


def test_optimizers_that_see_layers_one_by_one_are_known() -> None:
    names = layered(
        {
            'opt_state.0.scanned_2.count': (2,),
            'opt_state.0.scanned_2.v.stack.layers_0x2.up': (2, 4),
            'opt_state.0.single.count': (),
        }
    )
    assert names['opt_state.0.scanned_2.count'].names == ['opt_state.0.count'] * 2
    assert names['opt_state.0.single.count'].names == ['opt_state.0.count']
    assert names['opt_state.0.scanned_2.v.stack.layers_0x2.up'].names == [
        'opt_state.0.v.stack.layers_0.up',
        'opt_state.0.v.stack.layers_1.up',
    ]


def test_another_optimizer_cannot_be_loaded(tmp_path: Path) -> None:
    written(experiment(), tmp_path)
    made = experiment(task__learner__optimizer=SGD(momentum=0.9))
    with pytest.raises(UserError, match=r'opt_state\S* \(32, 16\): opt_state\S* is missing'):
        started(made, WarmStart(str(tmp_path), load_optimizer=True))


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    source = written(experiment(), tmp_path)
    stored = CheckpointReader(
        warm_start_sources(experiment(train__init_from_checkpoint=str(tmp_path)), '/')[0][2]
    )
    at = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    name = 'opt_state.0.0.mu.embedding.table'
    (found,) = stored.load({name: at}).items()
    assert found[0] == name
    np.testing.assert_array_equal(found[1], source.opt_state[0][0].mu['embedding']['table'])


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: LoadRule('('), 'pattern[0] is not a regular expression'),
        (lambda: LoadRule('a', r'\1'), r"source: '\\1' does not go with the pattern 'a'"),
        (lambda: WarmStart('a', ignore=['*']), 'ignore[0] is not a regular expression'),
        (lambda: WarmStart('a', rules=[]), 'rules must not be empty'),
        (
            lambda: TrainLoop(init_from_checkpoint=[WarmStart(x, load_step=True) for x in 'ab']),
            'init_from_checkpoint: load_step can be true in one source only',
        ),
    ],
)
def test_rules_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
