"""Tasks by what they learn: language models, and what else is trained."""

from trainer.tasks.language_model import LanguageModelTask as LanguageModelTask
from trainer.tasks.sequence import SequenceTask as SequenceTask
from trainer.tasks.supervised import ClassificationTask as ClassificationTask
from trainer.tasks.supervised import RegressionTask as RegressionTask
