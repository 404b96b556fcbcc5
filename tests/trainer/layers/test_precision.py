"""Outputs of a model are products in float32, whatever its layers compute in."""

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance.layer_examples import resnet
from trainer.layers import (
    Activate,
    Chain,
    Embedding,
    Flatten,
    Identity,
    Layer,
    Linear,
    Mlp,
    Stack,
    TransformerLm,
)
from trainer.layers.base import ForwardContext, forward_context

WIDTH, CLASSES = 32, 64
FEATURES = jax.random.normal(jax.random.key(0), (16, WIDTH), jnp.bfloat16)
IDS = jnp.arange(16)[None] % CLASSES


class HeadInside(Layer):
    """A head inside of a layer of a user."""

    head: Linear

    def forward(self, x: jax.Array) -> jax.Array:
        return self.head.call('logits', x)


def _lm(**head: Any) -> TransformerLm:
    return TransformerLm(Embedding(CLASSES, WIDTH), Stack([Identity()]), **head)


def rounded(model: Layer, *args: Any) -> float:
    """The share of the outputs in a bfloat16 pass that bfloat16 represents exactly."""
    with forward_context(ForwardContext(dtype=jnp.bfloat16)):
        variables = model.module().init({'params': jax.random.key(0)}, *args)
        outputs: Any = model.module().apply(variables, *args)
    assert outputs.dtype == jnp.float32
    return float(np.mean(np.asarray(outputs) == np.asarray(outputs.astype(jnp.bfloat16))))


@pytest.mark.parametrize(
    ('model', 'args'),
    [
        (Linear(CLASSES, bias='zeros'), (FEATURES,)),
        (Mlp([8], CLASSES), (FEATURES,)),
        (Chain([Flatten(), Linear(8), Activate(), Chain([Linear(CLASSES)])]), (FEATURES,)),
        (HeadInside(Linear(CLASSES)), (FEATURES,)),
        (_lm(), (IDS,)),
        (_lm(head=Linear(CLASSES)), (IDS,)),
        (resnet(), (FEATURES.reshape(2, 16, 16, 1),)),
    ],
    ids=['linear', 'mlp', 'chain', 'own layer', 'tied', 'untied', 'images'],
)
def test_outputs_are_not_rounded_to_bfloat16(model: Layer, args: tuple[Any, ...]) -> None:
    assert rounded(model, *args) < 0.1


def test_layers_in_between_stay_bfloat16() -> None:
    seen = []

    class Seeing(Layer):
        def forward(self, x: jax.Array) -> jax.Array:
            seen.append(x.dtype)
            return x

    rounded(Chain([Linear(8), Seeing(), Mlp([4], 8), Seeing(), Linear(CLASSES)]), FEATURES)
    assert set(seen) == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.slow
def test_rounded_outputs_of_a_users_layer_warn_once() -> None:
    code = """
import jax, jax.numpy as jnp, flax.linen as nn
from trainer.layers import LinenAdapter
from trainer.layers.base import ForwardContext
from trainer.learner import Learner
from trainer.program.train_step import forward
from trainer.tasks import ClassificationTask

class Dense(LinenAdapter):
    of: str

    def make(self):
        return nn.Dense(3, dtype=None if self.of == 'none' else self.of)

batch = {'image': jnp.ones((2, 4)), 'label': jnp.zeros(2, int)}
for dtype in ('float32', 'none', 'none'):
    print(dtype)
    task = ClassificationTask(Dense(dtype), Learner(1.0), fprop_dtype='bfloat16')
    variables = task.model.module().init({'params': jax.random.key(0)}, batch['image'])
    forward(task, variables, batch, {}, ForwardContext(dtype=jnp.bfloat16))
"""
    done = subprocess.run(
        [sys.executable, '-c', code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, 'PYTHONUNBUFFERED': '1'},
        check=False,
    )
    before, after = done.stdout.split('none\n', 1)
    assert 'task.model: its outputs are bfloat16' not in before
    assert after.count('task.model: its outputs are bfloat16') == 1, done.stdout
