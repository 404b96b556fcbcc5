"""Files that a new user writes, outside the repository."""

from pathlib import Path

TEXT = 'to be or not to be, that is the question: '

# A language model on an own text.
EXPERIMENT = """
import pyglove as pg
from paxtune import Budget, MetricReward, Search, Tunable
from trainer.experiment import Evaluation, TrainLoop
from trainer.inputs import TextInput
from trainer.layers import Embedding, FeedForward, Attention, Stack, TransformerBlock, TransformerLm
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
        search=Search(MetricReward('minimize', 'eval/loss'), Budget(3)),
    )
"""


def write(directory: Path, **modules: str) -> Path:
    """Writes the user's text and modules."""
    (directory / 'my_text.txt').write_text(TEXT * 40)
    (directory / 'my_eval.txt').write_text(TEXT * 5)
    for name, text in modules.items():
        (directory / f'{name}.py').write_text(text)
    return directory
