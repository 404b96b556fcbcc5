"""Pax's language models: sizes, shards and hyperparameters."""

import math
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pyglove as pg
import pytest

from paxtune.search_space.space import Space
from search_spaces import c4, c4_multislice, gpt, lm_cloud
from search_spaces.spmd import SpmdLm, SyntheticLm
from trainer.experiment import Experiment
from trainer.inspect import layout
from trainer.layers import LearnedPositions, SinusoidalPositions
from trainer.mesh import Mesh
from trainer.program.setup import check_batch_sizes, pipeline_schedules, prepare_inputs
from trainer.symbolic import registry
from trainer.symbolic.derived import derived
from trainer.symbolic.errors import UserError


class Size(NamedTuple):
    """An architecture and its mesh (replicas, fsdp, tensor)."""

    layers: int
    dims: int
    heads: int
    head_dim: int
    vocab: int
    mesh: tuple[int, int, int]

    def num_params(self) -> int:
        """The closed form: attention, feed-forward layers of four times the width, embedding."""
        attention = 4 * self.dims * self.heads * self.head_dim
        return self.layers * (attention + 8 * self.dims**2) + self.vocab * self.dims

    def shards(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each weight's shard."""
        _, fsdp, tensor = self.mesh
        dims, heads, hidden = self.dims // fsdp, self.heads // tensor, 4 * self.dims // tensor
        into = (self.layers, dims, heads, self.head_dim)
        return {
            'embedding.table': (self.vocab // tensor, dims),
            'attention.query': into,
            'attention.key': into,
            'attention.value': into,
            'attention.output': (self.layers, heads, self.head_dim, dims),
            'attention.per_dim_scale': (self.layers, self.head_dim),
            'feed_forward.up': (self.layers, dims, hidden),
            'feed_forward.down': (self.layers, hidden, dims),
            'attention_norm.scale': (self.layers, self.dims),
            'attention_norm.bias': (self.layers, self.dims),
            'feed_forward_norm.scale': (self.layers, self.dims),
            'feed_forward_norm.bias': (self.layers, self.dims),
            'final_norm.scale': (self.dims,),
            'final_norm.bias': (self.dims,),
        }


SIZES = {
    'c4.C4Spmd1BAdam4Replicas': Size(13, 2560, 20, 128, 32_000, (1, 4, 1)),
    'c4.C4Spmd2BAdam4Replicas': Size(18, 3072, 24, 128, 32_000, (1, 4, 1)),
    'c4.C4Spmd16BAdam32Replicas': Size(36, 6144, 48, 128, 32_000, (1, 16, 2)),
    'c4.C4Spmd32BAdam64Replicas': Size(40, 8192, 64, 128, 32_000, (1, 16, 4)),
    'c4_multislice.C4Spmd22BAdamMaxText': Size(48, 6144, 24, 256, 32_768, (1, 4, 2)),
    'c4_multislice.C4Spmd22BAdam2xv4_128': Size(48, 6144, 24, 256, 32_768, (2, 64, 1)),
    'c4_multislice.C4Spmd22BAdam2xv4_384': Size(24, 9216, 24, 384, 32_768, (2, 192, 1)),
    'lm_cloud.LmCloudSpmd2B': Size(18, 3072, 24, 128, 32_000, (1, 4, 1)),
    'lm_cloud.LmCloudSpmdMultislice2B': Size(18, 3072, 24, 128, 32_000, (2, 4, 1)),
    'lm_cloud.LmCloudSpmd32B': Size(40, 8192, 64, 128, 32_000, (1, 16, 4)),
    'lm_cloud.LmCloudSpmd64B': Size(51, 10_240, 80, 128, 32_000, (1, 16, 8)),
    'lm_cloud.LmCloudSpmd128B': Size(71, 12_288, 96, 128, 32_000, (1, 64, 4)),
    'lm_cloud.LmCloudSpmd256B': Size(80, 16_384, 128, 128, 32_000, (1, 64, 8)),
    'lm_cloud.LmCloudSpmd512B': Size(102, 20_480, 160, 128, 32_000, (1, 64, 16)),
    'lm_cloud.LmCloudSpmd1024B': Size(142, 24_576, 192, 128, 32_000, (1, 256, 8)),
}


@pytest.mark.pax('C4Spmd1BAdam4Replicas')
@pytest.mark.parametrize('name', SIZES)
def test_each_has_the_parameters_and_the_shards_of_its_closed_form(name: str) -> None:
    size, experiment = SIZES[name], registry.find(name, Experiment)
    found = layout(experiment)
    assert tuple(found.mesh_shape[axis] for axis in ('data', 'fsdp', 'tensor')) == size.mesh
    assert found.num_params == pytest.approx(size.num_params(), rel=1e-3)
    prefix = f'stack.layers_0x{size.layers}.'
    shards = {each.path.removeprefix(prefix): each.shard_shape for each in found.parameters}
    assert shards == size.shards()
    # Adam's two moments are sharded as the parameters; there are two step counters beside them.
    own = 4 * sum(int(np.prod(shape)) for shape in shards.values())
    assert (found.gradient_bytes, found.state_bytes) == (own, 3 * own + 8)


@pytest.mark.pax('The common C4 stack', 'C4Spmd16BAdam32Replicas', 'C4Spmd22BAdamMaxText')
@pytest.mark.pax('LmCloudSpmdTest')
@pytest.mark.parametrize(
    ('make', 'batch'),
    [
        (c4.C4Spmd1BAdam4Replicas, 128),
        (c4.C4Spmd2BAdam4Replicas, 128),
        (c4.C4Spmd16BAdam32Replicas, 512),
        (c4.C4Spmd32BAdam64Replicas, 512),
        (c4.C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas, 1536),
        (c4_multislice.C4Spmd22BAdamMaxText, 128),
        (c4_multislice.C4Spmd22BAdam1xv4_128, 1024),
        (c4_multislice.C4Spmd22BAdam2xv4_128, 2048),
        (c4_multislice.C4Spmd22BAdam4xv4_128, 4096),
        (c4_multislice.C4Spmd22BAdam1xv4_384, 1920),
        (c4_multislice.C4Spmd22BAdam2xv4_384, 3840),
        (lm_cloud.LmCloudSpmdTest, 4),
        (lm_cloud.LmCloudSpmd2B, 32),
        (lm_cloud.LmCloudSpmdMultislice2B, 128),
        (lm_cloud.LmCloudSpmd32B, 512),
        (lm_cloud.LmCloudSpmd64B, 512),
        (lm_cloud.LmCloudSpmd128B, 1024),
        (lm_cloud.LmCloudSpmd256B, 2048),
        (lm_cloud.LmCloudSpmd512B, 4096),
        (lm_cloud.LmCloudSpmd1024B, 4096),
        (lm_cloud.LmCloudTransformerAdam, 16),
        (gpt.GPT126M, 256),
    ],
)
def test_global_batches_are_paxs(make: Any, batch: int) -> None:
    assert make().train_input.batch_size == batch


@pytest.mark.pax('C4SpmdPipelineGpt3SmallAdam8Replicas', 'C4SpmdGpt3AdamOrgHP')
@pytest.mark.parametrize(
    ('name', 'num_devices', 'params', 'batch', 'schedule'),
    [
        (
            'c4.C4SpmdPipelineGpt3SmallAdam64Replicas',
            128,
            2.926e9,
            512,
            '4 stages of 6 layers, 32 microbatches of 16 examples, bubble 8.6 %',
        ),
        (
            'c4.C4SpmdPipelineGpt3SmallAdam8Replicas',
            8,
            2.926e9,
            512,
            '2 stages of 12 layers, 64 microbatches of 8 examples, bubble 1.5 %',
        ),
        (
            'c4.C4SpmdPipelineGpt3AdamMLPerfHPBS1p5k768Replicas',
            768,
            174.8e9,
            1536,
            '8 stages of 12 layers, 192 microbatches of 8 examples, bubble 3.5 %',
        ),
        (
            'c4.C4SpmdPipelineGpt3AdamMLPerfHPBS8k1024Replicas',
            1024,
            174.8e9,
            8192,
            '4 stages of 24 layers, 512 microbatches of 16 examples, bubble 0.6 %',
        ),
        (
            'lm_cloud.LmCloudSpmdPipeline9B',
            64,
            9.795e9,
            512,
            '16 stages of 3 layers, 128 microbatches of 4 examples, bubble 10.5 %',
        ),
        (
            'lm_cloud.LmCloudSpmdPipeline175B',
            128,
            174.3e9,
            96,
            '8 stages of 12 layers, 48 microbatches of 2 examples, bubble 12.7 %',
        ),
        (
            'lm_cloud.LmCloudSpmdPipelineMultislice2BCircular',
            8,
            2.137e9,
            128,
            '2 stages of 9 layers in 3 turns, 16 microbatches of 8 examples, bubble 2.0 %',
        ),
    ],
)
def test_pipelines_have_paxs_stages_and_microbatches(
    name: str, num_devices: int, params: float, batch: int, schedule: str
) -> None:
    made = registry.find(name, Experiment)
    found = layout(made, num_devices)
    assert math.prod(found.mesh_shape.values()) == num_devices
    assert found.num_params == pytest.approx(params, rel=1e-3)
    assert made.train_input.batch_size == batch
    check_batch_sizes(made, found.mesh)
    schedules = pipeline_schedules(made, found.mesh)
    assert {path: str(each) for path, each in schedules.items()} == {'task.model.stack': schedule}


@pytest.mark.parametrize(
    ('limited', 'plain', 'steps'),
    [
        (c4.C4Spmd1BAdam4ReplicasLimitSteps, c4.C4Spmd1BAdam4Replicas, 15_000),
        (c4.C4Spmd2BAdam4ReplicasLimitSteps, c4.C4Spmd2BAdam4Replicas, 15_000),
        (lm_cloud.LmCloudSpmd2BLimitSteps, lm_cloud.LmCloudSpmd2B, 300),
    ],
)
def test_limited_steps_are_the_only_difference(limited: Any, plain: Any, steps: int) -> None:
    assert limited() == plain().rebind({'train.num_train_steps': steps})
    assert plain().train.num_train_steps != steps


@pytest.mark.pax('The common C4 stack')
def test_the_learning_rate_is_paxs() -> None:
    learner = c4.C4Spmd1BAdam4Replicas().task.learner
    steps = np.array([3999, 4001, (4001 + 300_000) // 2, 300_000, 10**7])
    rates = [float(1e3 * learner.learning_rate * learner.schedule.factor(s)) for s in steps]
    np.testing.assert_allclose(rates, [1, 1, 10**-0.5, 0.1, 0.1], rtol=1e-3)


@pytest.mark.pax('GPT 126M')
def test_the_gpu_anchor_has_the_parameters_of_gpt() -> None:
    dims, hidden, vocab, length = 768, 3072, 50_304, 2048
    kernels, biases = 4 * dims**2 + 2 * dims * hidden, 4 * dims + hidden + dims
    norms = 2 * 2 * dims
    wanted = 12 * (kernels + biases + norms) + 2 * dims + (vocab + length) * dims
    found = layout(gpt.GPT126M())
    assert found.num_params == wanted
    assert found.num_params == pytest.approx(126e6, rel=0.01)
    assert found.mesh_shape['data'] == 64


@pytest.mark.pax('C4SpmdGpt3AdamOrgHP')
def test_gpt_3_has_175_billion_parameters() -> None:
    layers, dims, vocab, positions = 96, 12_288, 51_216, 16_384
    kernels, biases, norms = 12 * dims**2, (4 + 4 + 1) * dims, 4 * dims
    found = layout(c4.C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas())
    wanted = layers * (kernels + biases + norms) + 2 * dims + (vocab + positions) * dims
    assert found.num_params == wanted
    # Table 2.1 of Brown et al. 2020, which has 2,048 positions and 50,257 token ids.
    published = 174.6e9
    assert found.num_params - (vocab - 50_257 + positions - 2048) * dims == pytest.approx(
        published, rel=1e-3
    )
    assert found.mesh_shape == {'data': 1, 'fsdp': 64, 'sequence': 1, 'tensor': 24}


@pytest.mark.pax('LmCloudTransformerAdam')
def test_the_transformer_of_lm_cloud_has_biases_only_in_its_feed_forward_layers() -> None:
    layers, dims, hidden = 2, 1024, 4096
    block = 4 * dims**2 + 64 + 2 * dims * hidden + hidden + dims + 4 * dims
    found = layout(lm_cloud.LmCloudTransformerAdamTest())
    assert found.num_params == layers * block + 2 * dims + 32_000 * dims
    limited = lm_cloud.LmCloudTransformerAdamLimitSteps()
    assert limited.train.num_train_steps == 2000
    assert limited.task.model.stack.repeats == 10


def test_a_change_of_an_experiment_changes_no_other_of_its_family() -> None:
    family = SyntheticLm(num_layers=1, model_dims=8, num_heads=1)
    first = family.made()
    rate = first.task.learner.learning_rate
    first.rebind({'task.learner.learning_rate': pg.floatv(0.1, 1.0)})
    assert family.made().task.learner.learning_rate == rate


def test_unknown_fields_are_refused() -> None:
    misspelt: Any = {'percore_batch_siaze': 4}
    with pytest.raises(TypeError, match='percore_batch_siaze'):
        SpmdLm(num_layers=1, model_dims=8, num_heads=1, **misspelt)


def test_without_a_vocabulary_there_is_one_message() -> None:
    with pytest.raises(UserError, match=r"^train_input: vocabulary 'c4_en_32000.model': it cannot"):
        prepare_inputs(c4.C4Spmd1BAdam4Replicas())


def test_a_mesh_of_2048_devices_that_does_not_fit_is_refused() -> None:
    made = lm_cloud.LmCloudSpmd1024B().rebind({'mesh.fsdp': 16, 'mesh.tensor': 128})
    with pytest.raises(UserError, match="axis 'heads' of size 192 does not divide evenly over"):
        layout(made)


# `resource` and `os.wait4` report at least the memory of the parent process.
_MEASURED = """
import runpy, time

try:
    runpy.run_module('trainer.inspect', run_name='__main__')
finally:
    with open('/proc/self/status') as status:
        print('kilobytes', next(line.split()[1] for line in status if line[:6] == 'VmHWM:'))
    print('seconds', time.process_time())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_inspecting_takes_less_than_a_minute_and_4_gb() -> None:
    name = 'lm_cloud.LmCloudSpmd1024B'
    command = [sys.executable, '-c', _MEASURED, f'--exp={name}']
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    used = dict(line.split() for line in done.stdout.splitlines()[-2:])
    # Processor time: wall time depends on other processes.
    assert float(used['seconds']) < 60
    assert float(used['kilobytes']) * 1024 < 4e9
    printed = done.stdout.replace(',', '')
    count = next(int(line.split()[1]) for line in printed.splitlines() if line[:10] == 'parameters')
    assert count == pytest.approx(SIZES[name].num_params(), rel=1e-3)


def test_named_values_may_be_decisions_that_others_follow() -> None:
    base = SyntheticLm(
        num_layers=2,
        num_heads=8,
        dims_per_head=8,
        model_dims=pg.oneof([64, 128]),
        percore_batch_size=pg.oneof([4, 8]),
        ici_mesh_shape=(1, pg.oneof([1, 2]), 1),
        use_bias=pg.oneof([True, False]),
        position_emb=pg.oneof(
            [SinusoidalPositions(), LearnedPositions(derived('shared.max_seq_len'))]
        ),
        max_seq_len=pg.oneof([32, 64]),
    )
    space = Space(base.made())
    assert space.paths == [
        'task.model.position_embedding',
        'shared.model_dims',
        'shared.max_seq_len',
        'shared.percore_batch_size',
        'shared.ici_mesh_shape[1]',
        'shared.use_bias',
    ]
    made = space.materialize({id_: 1 for id_ in space.ids})
    model = made.task.model
    block = model.stack.layers[0]
    assert (model.embedding.dims, block.feed_forward.hidden_dims) == (128, 4 * 128)
    assert block.attention.bias == block.feed_forward.bias == 'none'
    assert model.position_embedding == LearnedPositions(64)
    assert made.train_input.sequence_length == made.eval_inputs['eval'].sequence_length == 64
    assert made.train_input.batch_size == made.eval_inputs['eval'].batch_size == 8 * 2
    assert made.mesh == Mesh(data=1, fsdp=2, tensor=1, dcn_data=1)
