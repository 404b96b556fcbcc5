from collections.abc import Iterator

import numpy as np

from trainer.inputs.base import Batch, Input
from trainer.inputs.weights import example_mask, weights_by_part, weights_of

_MAX_CHARACTERS = 200
_TOKENS = {'labels': 'segment_ids', 'encoder_ids': 'encoder_segment_ids'}
"""Features of token ids, and the features with their segments."""


def describe(batch: Batch) -> str:
    """Summarizes the padding of a batch and the packing of its rows.

    Example:
        >>> weights = np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
        >>> describe({'weights': weights, 'segment_ids': np.array([[1, 2, 2, 0], [0, 0, 0, 0]])})
        '37.5 % of its 8 positions have weight, 1 of 2 examples is padding, 2.0 documents per row'
    """
    found = [
        _described(weights, part, batch.get(f'{part}.segment_ids' if part else 'segment_ids'))
        for part, weights in weights_by_part(batch).items()
    ]
    return '; '.join(found) or f'{len(next(iter(batch.values())))} examples, without weights'


def _described(weights: np.ndarray, part: str, segment_ids: np.ndarray | None) -> str:
    kind = 'examples' if weights.ndim == 1 else 'positions'
    share = f'{(weights > 0).mean():.1%}'.replace('%', ' %')
    its = f'{part}: ' if part else ''
    parts = [f'{its}{share} of its {weights.size:,} {kind} have weight']
    empty = ~weights.reshape(len(weights), -1).any(axis=1)
    if empty.any():
        verb = 'is' if empty.sum() == 1 else 'are'
        parts.append(f'{empty.sum()} of {len(weights)} examples {verb} padding')
    if segment_ids is not None and not empty.all():
        documents = segment_ids.max(axis=1)[~empty].mean()
        parts.append(f'{documents:.1f} documents per row')
    return ', '.join(parts)


def spell(data: Input, batch: Batch, row: int) -> Iterator[str]:
    """Yields lines about one example: token ids as text, other features as numbers."""
    mask = example_mask(batch)
    if mask is not None and not mask[row]:
        yield 'padding'
        return
    texts = [name for name in _TOKENS if name in batch and batch[name].ndim == 2]
    for name in reversed(texts):
        for text in _texts(data, batch, name, row):
            more = len(text) > _MAX_CHARACTERS
            yield f'{name} {text[:_MAX_CHARACTERS]!r}{" …" if more else ""}'
    if not texts:
        yield ', '.join(f'{name} {_number(array[row])}' for name, array in sorted(batch.items()))


def _texts(data: Input, batch: Batch, name: str, row: int) -> list[str]:
    ids, segments = batch[name][row], batch.get(_TOKENS[name])
    if segments is None:
        # `weights` belong to the labels.
        is_encoder = name == 'encoder_ids'
        weights = batch.get('encoder_weights') if is_encoder else weights_of(batch, name)
        is_token = ids != 0
        if weights is not None and weights.ndim == 2:
            is_token |= weights[row] > 0
        there = np.flatnonzero(is_token)
        parts = [ids[: there[-1] + 1 if there.size else 0]]
    else:
        parts = [ids[segments[row] == k] for k in range(1, int(segments[row].max()) + 1)]
    return [data.text_of(part, name) for part in parts]


def _number(value: np.ndarray) -> str:
    if not value.ndim:
        return f'{value:.4g}'
    return f'{value.min():.4g} to {value.max():.4g} in {list(value.shape)}'
