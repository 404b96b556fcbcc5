"""TensorFlow as a reader of data: imported lazily, without GPUs, with few logs."""

import functools
import importlib
import os
from typing import Any, NamedTuple

from trainer.symbolic import extras


class Libraries(NamedTuple):
    """The modules `tensorflow`, `tensorflow_datasets` and `seqio`."""

    tf: Any
    tfds: Any
    seqio: Any


@functools.cache
def libraries() -> Libraries:
    """Imports the libraries, which takes five to ten seconds, and hides GPUs from them.

    TensorFlow would otherwise allocate nearly all memory of every GPU.

    Raises:
        UserError: they are not installed.
    """
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # Errors are raised, too.
    with extras.needed('seqio', 'data of SeqIO or TFDS'):
        tf = importlib.import_module('tensorflow')
        tf.config.set_visible_devices([], 'GPU')
        tfds = importlib.import_module('tensorflow_datasets')
        return Libraries(tf, tfds, importlib.import_module('seqio'))
