"""Packed pairs of sequences on a sequence axis of 4 simulated devices, in their own process."""

import json

import numpy as np
import pytest

from tests.servers.processes import on_devices

_SCRIPT = """
import json
import jax
import numpy as np
from trainer.layers import (
    Attention, CrossAttention, DecoderBlock, Embedding, FeedForward, Stack, TransformerBlock,
    TransformerEncoderDecoder,
)
from trainer.learner import Learner
from trainer.mesh import Mesh
from trainer.program.program import program_for
from trainer.tasks import SequenceTask

rng = np.random.default_rng(0)
segments = np.sort(rng.integers(1, 4, (4, 8)), axis=1).astype(np.int32)
segments[:, -1] = 0
places = np.tile(np.arange(8, dtype=np.int32), (4, 1))
batch = {}
for side in ('encoder_', ''):
    batch[side + 'ids'] = rng.integers(1, 32, (4, 8)).astype(np.int32)
    batch |= {side + 'segment_ids': segments, side + 'segment_pos': places}
batch |= {'labels': batch['ids'][:, ::-1].copy(), 'weights': (segments > 0).astype(np.float32)}
batch['encoder_weights'] = batch['weights']
spec = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}

decoder = DecoderBlock(
    attention=Attention(4, num_kv_heads=2), cross_attention=CrossAttention(4),
    feed_forward=FeedForward(32),
)
model = TransformerEncoderDecoder(
    embedding=Embedding(32, 16),
    encoder=Stack([TransformerBlock(Attention(4, mask='full'), FeedForward(32))]),
    decoder=Stack([decoder]),
)
task = SequenceTask(model=model, learner=Learner(learning_rate=0.01))
out = []
for mesh in (Mesh(data=1), Mesh(data=1, sequence=4)):
    made = mesh.make(jax.devices()[: mesh.min_devices()])
    program = program_for(task, made, spec)
    values, key = program.values(task), program.random_key(0)
    state, losses = program.init(key, values), []
    for _ in range(3):
        state, metrics = program.train_step(state, program.put(batch), key, values)
        losses.append(float(metrics['loss'].mean))
    out.append(losses)
print(json.dumps(out))
"""


@pytest.mark.slow
def test_packed_pairs_have_the_losses_of_one_device() -> None:
    printed = on_devices(_SCRIPT, devices=4)
    alone, divided = json.loads(printed)
    np.testing.assert_allclose(divided, alone, rtol=1e-5)
