"""Makes small data in the two formats that C4 comes in, and a SentencePiece model for it."""

import gzip
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path

TRAIN_DOCUMENTS = 240
VALIDATION_DOCUMENTS = 30

_WORDS = ['the', 'a', 'cat', 'dog', 'tree', 'house', 'sleeps', 'über', 'café', '世界', 'soon.\n']


def documents(count: int, seed: int = 0) -> list[str]:
    """Texts of 0 to some 400 bytes, no two alike."""
    drawn = random.Random(seed)
    texts = [
        f'{seed}-{i} ' + ' '.join(drawn.choices(_WORDS, k=drawn.randint(1, 60)))
        for i in range(count)
    ]
    return [*texts[:-1], '']


def make_json_shards(
    directory: Path,
    train: Sequence[str] = tuple(documents(TRAIN_DOCUMENTS, seed=1)),
    validation: Sequence[str] = tuple(documents(VALIDATION_DOCUMENTS, seed=2)),
    train_shards: int = 4,
    validation_shards: int = 2,
) -> Path:
    """Writes `c4-train.00000-of-00004.json.gz` and so on, as C4 was published.

    Returns:
        The directory, which is what `data_dir` is to be set to.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for split, texts, count in (
        ('train', train, train_shards),
        ('validation', validation, validation_shards),
    ):
        for i in range(count):
            name = f'c4-{split}.{i:05d}-of-{count:05d}.json.gz'
            lines = [json.dumps(_example(text)) + '\n' for text in _shard(texts, i, count)]
            (directory / name).write_bytes(gzip.compress(''.join(lines).encode(), mtime=0))
    return directory


def make_tfds_directory(
    directory: Path,
    version: str = '3.0.1',
    train: Sequence[str] = tuple(documents(TRAIN_DOCUMENTS, seed=1)),
    validation: Sequence[str] = tuple(documents(VALIDATION_DOCUMENTS, seed=2)),
    train_shards: int = 4,
) -> Path:
    """Writes a prepared TFDS directory, `c4/en/<version>`. Imports TensorFlow.

    Returns:
        The directory, which is what `data_dir` is to be set to.
    """
    from trainer.inputs.libraries import libraries

    tfds = libraries().tfds
    prepared = directory / 'c4' / 'en' / version
    prepared.mkdir(parents=True)
    text = tfds.features.Text()
    features = tfds.features.FeaturesDict({'text': text, 'timestamp': text, 'url': text})
    identity = tfds.core.dataset_info.DatasetIdentity(
        name='c4',
        config_name='en',
        version=tfds.core.Version(version),
        data_dir=str(prepared),
        module_name='tensorflow_datasets.text.c4',
    )
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=-(-len(train) // train_shards))
    writer.initialize_splits(['train', 'validation'])
    writer.add_examples({'train': list(map(_example, train))})
    writer.add_examples({'validation': list(map(_example, validation))})
    writer.close_all()
    return directory


def make_sentencepiece_model(path: Path, texts: Sequence[str] = tuple(documents(200))) -> Path:
    """Trains a small model with T5's special ids: 0 padding, 1 end, 2 unknown."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type='bpe',
        vocab_size=400,
        hard_vocab_limit=False,
        byte_fallback=True,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    return path


def _shard(texts: Sequence[str], index: int, count: int) -> Sequence[str]:
    size = -(-len(texts) // count)
    return texts[index * size : (index + 1) * size]


def _example(text: str) -> dict[str, str]:
    return {'text': text, 'timestamp': '2019-04-25T12:57:54Z', 'url': 'https://example.com'}
