import math
from typing import Any

import flax.linen as nn
import pyglove as pg
import pytest

from tests.factories.tiny import VOCAB, CountingInput, experiment
from trainer import inspect
from trainer.decoding import BeamSearch
from trainer.inspect import layout, validate
from trainer.layers import Attention, FeedForward, Layer, LinenAdapter, Stack, TransformerBlock
from trainer.symbolic.errors import UserError
from trainer.tasks.language_model import LanguageModelTask


def deep(**overrides: Any) -> Any:
    stack = Stack([TransformerBlock(Attention(2), FeedForward(32))], repeats=3, scan='always')
    return experiment(task__model__stack=stack, **overrides)


@pytest.mark.pax('… mesh shapes, axis', 'WeightHParams', 'Abstract initialization')
@pytest.mark.pax('Sharding: `BoxedParam`, `to_partition_spec`', 'PjitPartitioner')
def test_each_parameter_has_its_shard_on_devices_that_are_not_there() -> None:
    found = layout(deep(mesh__data=4, mesh__fsdp=8, mesh__tensor=2))
    assert found.mesh_shape == {'data': 4, 'fsdp': 8, 'sequence': 1, 'tensor': 2}
    by_path = {each.path: each for each in found.parameters}
    up = by_path['stack.layers_0x3.feed_forward.up']
    assert (up.shape, up.shard_shape) == ((3, 16, 32), (3, 2, 16))
    assert (up.axes, up.mesh_axes) == (('layers', 'embed', 'mlp'), (None, 'fsdp', 'tensor'))
    embedding, block = VOCAB * 16, 4 * 16 * 16 + 2 * 16 * 32 + 2 * 16
    assert found.num_params == embedding + 3 * block + 16
    matrices = (embedding + 3 * (block - 2 * 16)) // 16
    assert found.gradient_bytes == 4 * (matrices + 3 * 2 * 16 + 16)
    assert found.params_bytes == found.gradient_bytes
    # Parameters and two moments, and two counters of 4 bytes.
    assert found.state_bytes == 3 * found.gradient_bytes + 8


def test_averages_are_counted() -> None:
    plain, averaged = (layout(deep(task__learner__ema_decay=each)) for each in (None, 0.9))
    assert averaged.state_bytes - plain.state_bytes == plain.gradient_bytes


@pytest.mark.parametrize(
    ('overrides', 'num_devices', 'message'),
    [
        ({'mesh__data': 3}, 4, 'mesh: .*needs 3 devices, there are 4'),
        (
            {'mesh__data': 1, 'mesh__fsdp': 7},
            None,
            'parameter embedding.table: axis .embed. of size 16 does not divide evenly over the 7 '
            'devices of mesh.fsdp; choose a multiple of 7, another mesh.fsdp, or mesh.rules=.*: '
            'None}, with which each of them has it whole .6 more parameters',
        ),
        (
            {'mesh__data': 1, 'mesh__dcn_data': 3},
            8,
            'mesh: 8 devices are not 3 slices of equal',
        ),
    ],
)
def test_a_mesh_that_does_not_fit_is_named(
    overrides: Any, num_devices: int | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        layout(deep(**overrides), num_devices)


@pytest.mark.pax('validate()', '`validate_config`')
def test_mismatches_are_named_by_path() -> None:
    class Wide(CountingInput):
        vocab_size = VOCAB + 1

    made = deep(eval_inputs={'wide': Wide(batch_size=8)})
    with pytest.raises(UserError, match=r'^eval_inputs.wide: its vocabulary has 33 ids'):
        validate(made, layout(made))
    made = deep(mesh__data=16)
    with pytest.raises(UserError, match=r'^train_input.batch_size: 8 examples do not divide'):
        validate(made, layout(made))
    made = deep(mesh__data=1, mesh__sequence=3)
    with pytest.raises(UserError, match=r"^train_input: 8 positions of 'ids' do not divide"):
        validate(made, layout(made))
    made = deep(task__model__stack__layers=[TransformerBlock(Attention(3), FeedForward(32))])
    with pytest.raises(UserError, match='attention: 3 heads do not divide the width 16'):
        layout(made)


class Narrow(Layer):
    """Keeps one feature of the past, without a cache.

    Attributes:
        dims: features of the result.
    """

    dims: int = 1

    def forward(self, x_BTD: Any) -> Any:
        return x_BTD[..., : self.dims]


class Bigrams(LinenAdapter):
    """A language model of flax, with any number of logits."""

    vocab_size: int = VOCAB
    num_logits: int = VOCAB

    def make(self) -> nn.Module:
        return nn.Embed(VOCAB, self.num_logits)


def block(mixer: Layer) -> TransformerBlock:
    return TransformerBlock(mixer, FeedForward(32))


@pytest.mark.pax('validate()')
@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (
            {'task__model__stack__layers': [block(Attention(2)), block(Narrow())]},
            r'^task\.model\.stack\.layers\[1\]\.attention \(Narrow\): it makes \[8, 8, 1\] of',
        ),
        (
            {'task__model__stack__layers': [Narrow()]},
            r'^task\.model\.embedding \(Embedding\): \[8, 8, 1\] does not fit its kernel \[32',
        ),
        (
            {'task__model': Bigrams(num_logits=5)},
            r'^task\.model \(Bigrams\): it returns \(8, 8, 5\) for labels \(8, 8\)',
        ),
        (
            {
                'task__model__stack__layers': [block(Narrow(16))],
                'task__decoder': BeamSearch(4, prompt_length=3),
                'decode_inputs': {'test': CountingInput(batch_size=8)},
            },
            r'^task\.model\.stack\.layers\[0\]\.attention \(Narrow\): it cannot decode',
        ),
    ],
)
def test_parts_of_users_that_do_not_fit_are_named_by_path(fields: Any, message: str) -> None:
    made = experiment(**fields)
    with pytest.raises(UserError, match=message):
        validate(made, layout(made))


class AnyMask(LanguageModelTask):
    """A language model that does not look at its attention."""

    def check(self) -> None:
        pass


@pytest.mark.slow
def test_a_decode_step_is_tried_on_shapes() -> None:
    made = deep(task__decoder=BeamSearch(4, prompt_length=3))
    made.rebind({'decode_inputs': {'test': CountingInput(batch_size=8)}})
    validate(made, layout(made))
    made.rebind({'task.decoder': None})
    with pytest.raises(UserError, match=r'^decode_inputs\.test: there is no task\.decoder'):
        validate(made, layout(made))
    # A layer whose attention sees the future cannot write token by token.
    block = TransformerBlock(Attention(2, mask='full'), FeedForward(32))
    made = deep(task__decoder=BeamSearch(4, prompt_length=3))
    fields = {name: pg.clone(value, deep=True) for name, value in made.task.sym_items()}
    made.rebind({'task': AnyMask(**fields)})
    made.rebind({'task.model.stack.layers': [block]})
    made.rebind({'decode_inputs': {'test': CountingInput(batch_size=8)}})
    with pytest.raises(UserError, match='only causal attention can decode'):
        validate(made, layout(made))


@pytest.mark.pax('dump_hparams', 'dump_input_specs', 'base_hyperparams')
def test_the_command_prints_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    mesh = ['mesh.data=1', 'mesh.fsdp=2']
    assert inspect.main(['--exp=lm.C4Small', '--smoke', '--validate', '--set', *mesh]) == 0
    printed = capsys.readouterr().out
    assert 'attention.query' in printed
    assert 'train_input     ids int32 4×32, ' in printed
    assert 'eval_inputs.eval ids int32 16×32, ' in printed
    assert '×96×12×8' in printed and '×48×12×8' in printed
    assert 'learning rate   at most 0.0006' in printed
    assert 'without mismatch' in printed


def test_slices_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    mesh = ['mesh.data=2', 'mesh.fsdp=-1', 'mesh.dcn_data=3']
    flags = ['--exp=lm.C4Small', '--smoke', '--devices=12']
    assert inspect.main([*flags, '--set', *mesh]) == 0
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert 'mesh            data 6 × fsdp 2 × sequence 1 × tensor 1 = 12 devices' in printed
    assert '3 slices (DCN): data 3 × fsdp 1 × sequence 1 × tensor 1' in printed
    assert 'of each slice (ICI): data 2 × fsdp 2 × sequence 1 × tensor 1' in printed


def test_bad_flags_are_refused() -> None:
    with pytest.raises(UserError, match='--devices=0'):
        inspect.main(['--exp=lm.C4Small', '--devices=0'])


def test_curves_of_nothing_and_of_zeros() -> None:
    assert inspect.curve([]) == [''] * 6
    assert inspect.curve([0.0, 0.0]) == ['  '] * 6
    assert math.isclose(len(inspect.curve([1.0] * 7)[0]), 7)
