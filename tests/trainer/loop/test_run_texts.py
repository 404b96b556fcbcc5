"""TensorBoard shows texts about a run."""

from pathlib import Path

import pytest

from tests.factories.runs import measured
from tests.factories.tiny import experiment
from tests.servers.tensorboard import texts
from trainer.loop.report import Interrupted
from trainer.program.setup import compiled, localized

EXPERIMENT, PARAMETERS = 'experiment/text_summary', 'parameters/text_summary'


@pytest.mark.pax('Written at the start')
@pytest.mark.contract
def test_texts_have_the_experiment_and_each_parameter(tmp_path: Path) -> None:
    made = experiment(num_steps=3, task__learner__learning_rate=0.125)
    asked = iter([False, True])
    with pytest.raises(Interrupted):
        measured(made, tmp_path, should_interrupt=lambda: next(asked, True))
    measured(made, tmp_path)  # A resumed run drops texts after its checkpoint.
    found = texts(tmp_path, 'summaries')
    assert set(found) == {EXPERIMENT, PARAMETERS}
    assert 'learning_rate = 0.125' in found[EXPERIMENT]
    assert 'weight_decay' not in found[EXPERIMENT]  # A default.
    count = compiled(localized(made))[0].num_params()
    assert f'| **total** | | | **{count:,}** |' in found[PARAMETERS]
    assert '| softmax.' in found[PARAMETERS] or '| embedding.' in found[PARAMETERS]


def test_texts_follow_a_change_of_the_experiment(tmp_path: Path) -> None:
    measured(experiment(num_steps=2), tmp_path)
    measured(experiment(num_steps=3), tmp_path, allow_changes=True)
    assert 'num_train_steps = 3' in texts(tmp_path, 'summaries')[EXPERIMENT]
