"""Tasks by what they learn: language models, and what else is trained."""

from trainer.tasks.language_model import LanguageModelTask as LanguageModelTask
