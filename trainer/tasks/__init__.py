"""Tasks: language models, sequence to sequence, classification and regression.

A task computes the metrics and the loss of a batch. `trainer.program` compiles its steps.
"""

from trainer.tasks.language_model import LanguageModelTask as LanguageModelTask
from trainer.tasks.masked_language_model import (
    MaskedLanguageModelTask as MaskedLanguageModelTask,
)
from trainer.tasks.preference import PreferenceTask as PreferenceTask
from trainer.tasks.sequence import SequenceTask as SequenceTask
from trainer.tasks.supervised import ClassificationTask as ClassificationTask
from trainer.tasks.supervised import RegressionTask as RegressionTask
