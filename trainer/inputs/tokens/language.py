from collections.abc import Sequence

import jax
import numpy as np

from trainer.inputs.base import Batch
from trainer.inputs.tokens.base import PAD_ID


def language_spec(
    batch_size: int, length: int, *, packed: bool = False, label_bytes: bool = True
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of a batch of `batch_size` rows of `length` tokens.

    Returns:
        Specs of ids and labels (int32) and weights (float32, 0 for padding). Packed rows, which
        hold several documents, also have segment_ids (from 1) and segment_pos (within the segment),
        int32, 0 for padding. `label_bytes` is float32, the UTF-8 bytes of text of a label, 0 for
        padding.
    """
    integers = ['ids', 'labels'] + ['segment_ids', 'segment_pos'] * packed
    floats = ['weights'] + ['label_bytes'] * label_bytes
    shape = (batch_size, length)
    return {name: jax.ShapeDtypeStruct(shape, np.int32) for name in integers} | {
        name: jax.ShapeDtypeStruct(shape, np.float32) for name in floats
    }


def batch_of_segments(
    rows: Sequence[Sequence[np.ndarray]],
    spec: dict[str, jax.ShapeDtypeStruct],
    bytes_per_id: np.ndarray,
    bos_id: int = PAD_ID,
) -> Batch:
    """A batch of rows, each of the labels of one or several segments.

    Args:
        rows: the segments of each row; missing rows and the ends of short ones are padding.
        spec: the features of the batch, from `language_spec`.
        bytes_per_id: bytes of text of each id.
        bos_id: the id before the first label of a segment in `ids`.

    Example:
        >>> rows = [[np.array([7, 8, 1]), np.array([9])]]
        >>> batch = batch_of_segments(rows, language_spec(1, 5, packed=True), np.ones(10))
        >>> batch['ids'].tolist(), batch['labels'].tolist()
        ([[0, 7, 8, 0, 0]], [[7, 8, 1, 9, 0]])
        >>> batch['segment_ids'].tolist(), batch['segment_pos'].tolist()
        ([[1, 1, 1, 2, 0]], [[0, 1, 2, 0, 0]])
    """
    labels = np.zeros(spec['labels'].shape, np.int32)
    starts = np.zeros(labels.shape, bool)
    weights = np.zeros(labels.shape, np.float32)
    for i, row in enumerate(rows):
        if not row:
            continue
        ends = np.cumsum([segment.size for segment in row])
        labels[i, : ends[-1]] = np.concatenate(row)
        weights[i, : ends[-1]] = 1
        starts[i, [0, *ends[:-1]]] = True
    there = weights.astype(np.int32)
    ids = np.full(labels.shape, bos_id, np.int32)
    ids[:, 1:] = np.where(starts[:, 1:], bos_id, labels[:, :-1])
    column = np.arange(labels.shape[1], dtype=np.int32)
    since_start = column - np.maximum.accumulate(np.where(starts, column, 0), axis=1)
    batch = {
        'ids': ids * there,
        'labels': labels,
        'weights': weights,
        'segment_ids': np.cumsum(starts, axis=1, dtype=np.int32) * there,
        'segment_pos': since_start * there,
        'label_bytes': (bytes_per_id[labels] * weights).astype(np.float32),
    }
    return {name: batch[name] for name in spec}
