"""Accuracies of the image experiments."""

from pathlib import Path

import pytest

from paxtune.search_space.space import Space
from search_spaces import vision
from trainer.loop.train_loop import run
from trainer.mesh import Mesh


@pytest.mark.slow
def test_a_residual_network_reads_digits_after_half_of_its_steps(tmp_path: Path) -> None:
    steps = dict.fromkeys(('train.num_train_steps', 'task.learner.schedule.decay_steps'), 220)
    *_, last = run(vision.DigitsResNet().rebind({'mesh': Mesh(data=1), **steps}), tmp_path)
    assert last.metrics['test/accuracy'] > 0.97


def test_the_space_of_networks_for_digits() -> None:
    space = Space(vision.DigitsTunable())
    assert {path.rpartition('.')[2] for path in space.ids} >= {
        'stage_sizes', 'width', 'norm', 'learning_rate', 'weight_decay',
    }  # fmt: skip
