"""Files that a new user writes, outside the repository."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

# A language model on an own text.
WIKI = """
import pyglove as pg

from paxtune import Budget, MetricReward, Search, Tunable
from trainer.experiment import Evaluation, TrainLoop
from trainer.inputs import TextInput
from trainer.layers import Attention, Embedding, FeedForward, Stack, TransformerBlock, TransformerLm
from trainer.learner import Learner
from trainer.tasks import LanguageModelTask


def Wiki():
    block = TransformerBlock(Attention(num_heads=2), FeedForward(hidden_dims=16))
    model = TransformerLm(Embedding(256, dims=16), Stack([block], repeats=1))
    data = dict(batch_size=4, sequence_length=16)
    return Tunable(
        task=LanguageModelTask(model, Learner(pg.floatv(1e-3, 1e-1, 'log'))),
        train_input=TextInput(paths=['my_text.txt'], is_training=True, **data),
        eval_inputs={'eval': TextInput(paths=['my_eval.txt'], **data)},
        train=TrainLoop(num_train_steps=6, evaluation=Evaluation(3)),
        search=Search(MetricReward('minimize', 'eval/loss'), Budget(2)),
    )
"""

# A regression with an own loss on own numbers.
FIT = """
import numpy as np
import pyglove as pg

from paxtune import Budget, MetricReward, Search, Tunable
from trainer.experiment import Evaluation, TrainLoop
from trainer.inputs import ArraysInput, arrays_of
from trainer.layers import Mlp
from trainer.learner import Learner
from trainer.losses import Loss
from trainer.tasks import RegressionTask


class Line(ArraysInput):
    def read(self):
        x = np.linspace(-1, 1, 64)
        return arrays_of({'x': x[:, None], 'y': 2 * x})


class Squared(Loss):
    def of(self, outputs, labels):
        return (outputs[:, 0] - labels) ** 2


def Fit():
    learner = Learner(pg.floatv(1e-3, 1e-1, 'log'))
    features = {'input_feature': 'x', 'label_feature': 'y'}
    task = RegressionTask(Mlp([4], 1), learner, loss=Squared(), **features)
    return Tunable(
        task=task,
        train_input=Line(batch_size=8, is_training=True),
        eval_inputs={'eval': Line(batch_size=8)},
        train=TrainLoop(num_train_steps=6, evaluation=Evaluation(3)),
        search=Search(MetricReward('minimize', 'eval/loss'), Budget(3)),
    )
"""

# An own function, in a script.
FUNCTION = """
import time

import paxtune
import pyglove as pg


def error(x, width):
    time.sleep(0.5)
    return (x - 0.3) ** 2 / width


space = {'x': pg.floatv(0.0, 1.0), 'width': paxtune.intv(1, 4)}
study = paxtune.tune(error, space=space, num_trials=8, objective='minimize')
if study.interrupted:
    print(f'{len(study.trials)} trials so far')
    study = paxtune.tune(error, study=study, num_trials=8)
print(f'all {len(study.trials)} trials, best {study.best.id}')
"""

_TEXT = 'to be or not to be, that is the question: '


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A directory with a short path, where the user's text and modules are."""
    with tempfile.TemporaryDirectory(prefix='home') as name:
        directory = Path(name)
        (directory / 'my_text.txt').write_text(_TEXT * 40)
        (directory / 'my_eval.txt').write_text(_TEXT * 5)
        (directory / 'my_exp.py').write_text(WIKI)
        (directory / 'my_fit.py').write_text(FIT)
        (directory / 'my_function.py').write_text(FUNCTION)
        yield directory


def edit(path: Path, old: str, new: str) -> None:
    """Changes a file of the user."""
    text = path.read_text()
    assert old in text, f'{path} has no {old!r}'
    path.write_text(text.replace(old, new))


def content(directory: Path) -> dict[str, bytes]:
    """The files below a directory."""
    files = (path for path in directory.rglob('*') if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
