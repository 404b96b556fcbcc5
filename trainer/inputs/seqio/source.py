from typing import Any

from trainer.inputs.base import Input
from trainer.inputs.libraries import libraries
from trainer.inputs.seqio import tasks
from trainer.inputs.seqio.seqio_vocabulary import name_of
from trainer.inputs.tokens.vocabulary import ByteVocabulary


class SeqIOSource(Input):
    """Access to a split of a SeqIO task or mixture, and to its vocabulary.

    Attributes:
        mixture_or_task: name in SeqIO's registries.
        split: such as 'train' or 'validation'.
        task_feature_lengths: tokens of each feature, such as {'targets': 512}. Longer examples
            are cut off.
        module: the module that registers the task: part of this project, imported already, or
            allowed by `allow_task_module`.
    """

    mixture_or_task: str
    split: str
    task_feature_lengths: dict[str, int]
    module: str = ''

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self._seqio_vocabulary().vocab_size)

    def vocabulary_name(self) -> str:
        name = name_of(self._seqio_vocabulary())
        ours = ByteVocabulary()
        return ours.fingerprint if name == name_of(ours.for_seqio()) else name

    def _tasks(self) -> list[Any]:
        found = libraries().seqio.get_subtasks(self._provider())
        return [task for task in found if self.split in task.splits]

    def _provider(self) -> Any:
        setting = ' and '.join(self.settings('module'))
        return tasks.provider(self.mixture_or_task, self.module, setting)

    def _seqio_vocabulary(self) -> Any:
        return self._provider().output_features['targets'].vocabulary
