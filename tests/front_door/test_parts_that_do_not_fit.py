"""Models of users whose parts do not fit: both commands say so first, with the path."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import pyglove as pg
import pytest

from paxtune import search
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.rewards import MetricReward
from tests.factories import tiny
from trainer import inspect
from trainer.layers import (
    Attention,
    Experts,
    FeedForward,
    Layer,
    LinenAdapter,
    Positions,
    TransformerBlock,
)
from trainer.mesh import Mesh
from trainer.symbolic.errors import UserError


class Narrow(Layer):
    """Keeps one feature."""

    def forward(self, x_BTD: Any, positions: Positions | None = None) -> Any:
        return x_BTD[..., :1]


class Bigrams(LinenAdapter):
    """A language model of flax with too few logits."""

    vocab_size: int = tiny.VOCAB

    def make(self) -> nn.Module:
        return nn.Embed(tiny.VOCAB, 5)


def searched(*layers: Layer, **overrides: Any) -> Tunable:
    made = tiny.experiment(**overrides)
    if layers:
        made.task.model.stack.rebind(layers=list(layers))
    space = Tunable(
        **dict(made.sym_init_args),
        search=Search(MetricReward('minimize', 'eval/loss'), Budget(2)),
    )
    return space.rebind({'task.learner.learning_rate': pg.floatv(1e-3, 1e-1)})


def Logits() -> Tunable:
    return searched(task__model=Bigrams())


def Mixer() -> Tunable:
    return searched(TransformerBlock(Narrow(), FeedForward(32)))


def Axis() -> Tunable:
    return searched(mesh=Mesh(data=1, tensor=3))


def ManyExperts() -> Tunable:
    block = TransformerBlock(Attention(2), Experts(3, 8))
    return searched(block, mesh=Mesh(data=1, expert=2))


def Mask() -> Tunable:
    return searched(TransformerBlock(Attention(2), FeedForward(32)))


MESSAGES = {
    'Logits': ('', 'task.model (Bigrams): it returns (8, 8, 5) for labels (8, 8). Expected logits'),
    'Mixer': (
        '',
        'task.model.stack.layers[0].attention (Narrow): it makes [8, 8, 1] of [8, 8',
    ),
    'Axis': ('', "parameter embedding.table: axis 'vocab' of size 32 does not divide evenly over"),
    'ManyExperts': (
        '',
        "parameter stack.layers_0.feed_forward.down: axis 'experts' of size 3",
    ),
    'Mask': ('window=3', "task.model.stack.layers[0].attention: window is causal: it needs mask='"),
}


@pytest.mark.fast(1)
@pytest.mark.parametrize('name', MESSAGES)
def test_parts_that_do_not_fit_are_refused_before_the_first_step(name: str, tmp_path: Path) -> None:
    field, message = MESSAGES[name]
    attention = 'task.model.stack.layers[0].attention'
    sets = [f'{attention}.mask=full', f'{attention}.{field}'] if field else []
    exp = f'--exp={__name__}.{name}'
    for refused in (
        lambda: inspect.main([exp, '--validate', '--set', 'task.learner.learning_rate=0.1', *sets]),
        lambda: search.main(
            [exp, f'--job_log_dir={tmp_path / "study"}', *(['--set', *sets] if sets else [])]
        ),
    ):
        with pytest.raises(UserError) as raised:
            refused()
        assert str(raised.value).startswith(message)
        assert raised.value.exit_code == 2
        assert not (tmp_path / 'study').exists()
