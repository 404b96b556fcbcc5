"""TensorFlow as a reader of data: imported late, without GPUs, and silent."""

import functools
import importlib
import os
from typing import Any, NamedTuple


class Libraries(NamedTuple):
    """The modules `tensorflow`, `tensorflow_datasets` and `seqio`."""

    tf: Any
    tfds: Any
    seqio: Any


@functools.cache
def libraries() -> Libraries:
    """Imports the libraries, which takes five to ten seconds, and keeps GPUs out of their sight.

    TensorFlow would otherwise take nearly all memory of every GPU that JAX is to train on.
    """
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # What matters is raised, too.
    tf = importlib.import_module('tensorflow')
    tf.config.set_visible_devices([], 'GPU')
    tfds = importlib.import_module('tensorflow_datasets')
    return Libraries(tf, tfds, importlib.import_module('seqio'))
