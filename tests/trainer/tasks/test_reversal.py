"""An encoder and a decoder learn to reverse the strings of a SeqIO task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.decoding import Greedy
from trainer.experiment import Checkpoints, Decoding, Evaluation, Experiment, TrainLoop
from trainer.inputs.libraries import libraries
from trainer.inputs.seqio.features import SequenceModelFeatures
from trainer.inputs.seqio.seqio_input import SeqIOInput
from trainer.layers import (
    Attention,
    CrossAttention,
    DecoderBlock,
    Embedding,
    FeedForward,
    Stack,
    TransformerBlock,
    TransformerEncoderDecoder,
)
from trainer.learner import Cosine, Learner
from trainer.loop.train_loop import run
from trainer.mesh import Mesh
from trainer.tasks import SequenceTask

pytestmark = pytest.mark.slow

NAME, LONGEST, DIMS = 'paxtune_reversed_strings', 10, 64
COUNTS = {'train': 50_000, 'validation': 512}


def strings(split: str, shuffle_files: bool, seed: int | None = None) -> Any:
    """Strings of random letters; the splits share none."""
    del shuffle_files, seed
    rng = np.random.default_rng(0)
    letters = rng.integers(ord('a'), ord('z') + 1, (sum(COUNTS.values()), LONGEST), np.uint8)
    lengths = rng.integers(3, LONGEST + 1, len(letters))
    texts = [bytes(row[:n]) for row, n in zip(letters, lengths, strict=True)]
    known = set(texts[: COUNTS['train']])
    chosen = texts[: COUNTS['train']] if split == 'train' else [t for t in texts if t not in known]
    pairs = {'inputs': chosen, 'targets': [text[::-1] for text in chosen]}
    return libraries().tf.data.Dataset.from_tensor_slices(pairs)


def exact(targets: list[str], predictions: list[str]) -> dict[str, float]:
    """The share of correct texts, in percent."""
    right = [target == text for target, text in zip(targets, predictions, strict=True)]
    return {'exact': 100 * float(np.mean(right))}


def likelihood(targets: list[str], scores: list[float]) -> dict[str, float]:
    """The mean log-likelihood of the targets, in nats."""
    return {'target_log_prob': float(np.mean(scores))}


@pytest.fixture
def task_name() -> Any:
    seqio = libraries().seqio
    feature = seqio.Feature(seqio.ByteVocabulary(), add_eos=True)
    seqio.TaskRegistry.add(
        NAME,
        source=seqio.FunctionDataSource(strings, splits=list(COUNTS)),
        preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
        output_features={'inputs': feature, 'targets': feature},
        metric_fns=[exact, likelihood],
    )
    yield NAME
    seqio.TaskRegistry.remove(NAME)


def data(name: str, split: str, **fields: Any) -> SeqIOInput:
    lengths = {'inputs': LONGEST + 1, 'targets': LONGEST + 1}
    return SeqIOInput(
        mixture_or_task=name,
        split=split,
        task_feature_lengths=lengths,
        feature_converter=SequenceModelFeatures(),
        **fields,
    )


def test_an_encoder_and_a_decoder_learn_to_reverse_strings(task_name: str, tmp_path: Path) -> None:
    decoder_block = DecoderBlock(
        attention=Attention(4), cross_attention=CrossAttention(4), feed_forward=FeedForward()
    )
    encoder_block = TransformerBlock(Attention(4, mask='full'), FeedForward())
    model = TransformerEncoderDecoder(
        embedding=Embedding(vocab_size=259, dims=DIMS),
        encoder=Stack([encoder_block], repeats=2),
        decoder=Stack([decoder_block], repeats=2),
    )
    steps = 500
    made = Experiment(
        task=SequenceTask(
            model=model,
            learner=Learner(
                learning_rate=3e-3,
                schedule=Cosine(warmup_steps=100, decay_steps=steps, final_factor=0.01),
            ),
            decoder=Greedy(LONGEST + 1, eos_ids=[1]),
        ),
        train_input=data(task_name, 'train', batch_size=64, is_training=True),
        eval_inputs={'eval': data(task_name, 'validation', batch_size=128, example_ids=True)},
        decode_inputs={'test': data(task_name, 'validation', batch_size=200, example_ids=True)},
        mesh=Mesh(data=1),
        train=TrainLoop(
            num_train_steps=steps,
            evaluation=Evaluation(steps),
            decoding=Decoding(steps),
            checkpoints=Checkpoints(steps),
        ),
    )
    *_, last = run(made, tmp_path)
    assert last.metrics['eval/accuracy'] > 0.99
    assert last.metrics['eval/acc_strict'] > 0.95
    # Whole generated texts, without teacher forcing.
    assert last.metrics['decode_test/exact_match'] > 0.95
    assert last.metrics['decode_test/exact'] == 100 * last.metrics['decode_test/exact_match']
    # A mean over tokens, and over texts with their end.
    nats = last.metrics['eval/log_pplx'] * last.metrics['eval/num_predictions']
    number = last.metrics['decode_test/num_decoded']
    assert last.metrics['eval/target_log_prob'] == pytest.approx(-nats / number, rel=1e-3)
