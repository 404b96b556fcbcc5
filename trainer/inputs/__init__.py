"""Inputs: sources of batches with a position that can be saved and restored.

Inputs run on the host and return numpy arrays. TensorFlow and Grain are imported at first use.
"""

from trainer.inputs.arrays.arrays import Arrays as Arrays
from trainer.inputs.arrays.arrays import ArraysInput as ArraysInput
from trainer.inputs.arrays.arrays import NpzInput as NpzInput
from trainer.inputs.arrays.arrays import arrays_of as arrays_of
from trainer.inputs.arrays.digits import DigitsInput as DigitsInput
from trainer.inputs.arrays.images import ImagesInput as ImagesInput
from trainer.inputs.base import Batch as Batch
from trainer.inputs.base import EndOfData as EndOfData
from trainer.inputs.base import Input as Input
from trainer.inputs.finetuning.compared import ChoiceInput as ChoiceInput
from trainer.inputs.finetuning.compared import PreferenceInput as PreferenceInput
from trainer.inputs.finetuning.docstrings import DocstringInput as DocstringInput
from trainer.inputs.finetuning.finetune_input import FinetuneInput as FinetuneInput
from trainer.inputs.grain.document_sources import ArrayRecordFiles as ArrayRecordFiles
from trainer.inputs.grain.document_sources import ArrowFiles as ArrowFiles
from trainer.inputs.grain.document_sources import ParquetFiles as ParquetFiles
from trainer.inputs.grain.document_sources import TextLines as TextLines
from trainer.inputs.grain.grain_input import GrainInput as GrainInput
from trainer.inputs.indexed import IndexedInput as IndexedInput
from trainer.inputs.lingvo import LingvoEvalAdaptor as LingvoEvalAdaptor
from trainer.inputs.lingvo import LingvoInputAdaptor as LingvoInputAdaptor
from trainer.inputs.lingvo import LingvoInputAdaptorNewBatchSize as LingvoInputAdaptorNewBatchSize
from trainer.inputs.lingvo import lingvo_generator as lingvo_generator
from trainer.inputs.mixture import MixtureInput as MixtureInput
from trainer.inputs.multi import MultiInput as MultiInput
from trainer.inputs.seqio.features import LanguageModelFeatures as LanguageModelFeatures
from trainer.inputs.seqio.features import SequenceModelFeatures as SequenceModelFeatures
from trainer.inputs.seqio.seqio_input import SeqIOInput as SeqIOInput
from trainer.inputs.seqio.tasks import allow_task_module as allow_task_module
from trainer.inputs.synthetic import SyntheticLmInput as SyntheticLmInput
from trainer.inputs.text.c4 import C4Input as C4Input
from trainer.inputs.text.json_shards import JsonShardsInput as JsonShardsInput
from trainer.inputs.text.stdlib import StdlibInput as StdlibInput
from trainer.inputs.text.text import TextInput as TextInput
from trainer.inputs.tokens.tokenizer import TokenizerVocabulary as TokenizerVocabulary
from trainer.inputs.tokens.vocabulary import ByteVocabulary as ByteVocabulary
from trainer.inputs.tokens.vocabulary import SentencePieceVocabulary as SentencePieceVocabulary
from trainer.inputs.tokens.vocabulary import Vocabulary as Vocabulary
