"""SeqIO tasks for tests, registered when this module is imported. Imports TensorFlow."""

import functools

from tests.factories.c4_data import documents
from trainer.inputs.libraries import libraries

tf, tfds, seqio = libraries()

TEXTS = {'train': documents(120, seed=3), 'validation': documents(40, seed=4)}


def texts_of(split, shuffle_files, seed=None):
    del shuffle_files, seed
    return tf.data.Dataset.from_tensor_slices({'text': TEXTS[split]})


def generated(split, shuffle_files, seed=None):
    """The same texts from a Python generator, whose state TensorFlow cannot save."""
    del shuffle_files, seed
    signature = {'text': tf.TensorSpec((), tf.string)}
    return tf.data.Dataset.from_generator(
        lambda: ({'text': text} for text in TEXTS[split]), output_signature=signature
    )


def question_and_answer(dataset):
    return dataset.map(
        lambda example: {
            'inputs': tf.strings.substr(example['text'], 0, 4),
            'targets': example['text'],
        }
    )


def reversed_text(dataset):
    return dataset.map(
        lambda example: {
            'inputs': example['text'],
            'targets': tf.strings.reduce_join(
                tf.reverse(tf.strings.unicode_split(example['text'], 'UTF-8'), [0])
            ),
        }
    )


def exact(targets, predictions):
    """The share of correct predictions, in percent."""
    right = [target == prediction for target, prediction in zip(targets, predictions, strict=True)]
    return {'exact': 100 * sum(right) / len(right)}


def mean_score(targets, scores):
    return {'mean_score': sum(scores) / len(targets)}


def sample(targets, predictions):
    return {'sample': 'text'}


def stripped(text, example, is_target):
    """A postprocessor that sees the example."""
    assert 'targets' in example
    return text.strip().lower() if is_target else text.strip()


def add(name, source, *features, preprocessor=None, **fields):
    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(source, splits=list(TEXTS)),
        preprocessors=[
            preprocessor
            or functools.partial(seqio.preprocessors.rekey, key_map={'targets': 'text'}),
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos_after_trim,
        ],
        **fields,
        output_features={
            feature: seqio.Feature(seqio.ByteVocabulary(), add_eos=True) for feature in features
        },
        # Smaller than the data, so that a saved position holds a buffer in use.
        shuffle_buffer_size=50,
    )


add('paxtune_texts', texts_of, 'targets')
add('paxtune_sampled', texts_of, 'targets', metric_fns=[sample])
add('paxtune_generated', generated, 'targets')
add('paxtune_answers', texts_of, 'inputs', 'targets', preprocessor=question_and_answer)
add(
    'paxtune_reversed',
    texts_of,
    'inputs',
    'targets',
    preprocessor=reversed_text,
    metric_fns=[exact, mean_score],
    postprocess_fn=stripped,
)
seqio.TaskRegistry.add(
    'paxtune_train_only',
    source=seqio.FunctionDataSource(texts_of, splits=['train']),
    preprocessors=[
        functools.partial(seqio.preprocessors.rekey, key_map={'targets': 'text'}),
        seqio.preprocessors.tokenize,
    ],
    output_features={'targets': seqio.Feature(seqio.ByteVocabulary(), add_eos=False)},
)
seqio.TaskRegistry.add(
    'paxtune_numbers',
    source=seqio.FunctionDataSource(
        lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
            {'targets': [[1, 2, 3], [4, 5, 6]]}
        ),
        splits=['validation'],
    ),
    preprocessors=[],
    output_features={'targets': seqio.Feature(seqio.PassThroughVocabulary(10), add_eos=False)},
)
seqio.TaskRegistry.add(
    'paxtune_numbered',
    source=seqio.FunctionDataSource(
        lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
            {'inputs': [[7, 1]], 'targets': [[8, 1]], 'number': [3]}
        ),
        splits=['validation'],
    ),
    preprocessors=[],
    output_features={
        feature: seqio.Feature(seqio.ByteVocabulary(), add_eos=True)
        for feature in ('inputs', 'targets')
    },
)
seqio.MixtureRegistry.add(
    'paxtune_pairs', ['paxtune_answers', 'paxtune_numbered', 'paxtune_reversed'], 1
)
seqio.MixtureRegistry.add('paxtune_mixture', ['paxtune_texts', 'paxtune_generated'], 1)
