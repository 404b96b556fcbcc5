import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trainer.decoding.base import Decoded, DecodeOutput, Decoder
from trainer.inputs.base import Input
from trainer.inputs.weights import broadcast, weight_features, weights_of
from trainer.symbolic.errors import UserError

_MARKS = ('prefix_lengths', 'inputs_indicator', 'encoder_weights', 'encoder_segment_ids')
"""Features that are not 0 where a row has a prompt."""


@dataclasses.dataclass(frozen=True)
class Text:
    """One generated text.

    Attributes:
        ids: its tokens, the end-of-text token included.
        text: the text without that token.
        log_prob: its log probability under the model, in nats.
        score: orders the texts of a prompt.
    """

    ids: list[int]
    text: str
    log_prob: float
    score: float


@dataclasses.dataclass(frozen=True)
class DecodedExample:
    """The texts for one prompt.

    Attributes:
        number: of the example in its set, from 1.
        prompt: the prompt, or the source of a sequence task.
        target: the reference in the data; '' where there is none.
        is_right: the best text equals the target, token for token; None where there is none.
        texts: the best first.
    """

    number: int
    prompt: str
    target: str
    is_right: bool | None
    texts: list[Text]

    def to_json(self) -> dict[str, Any]:
        """Converts it to JSON data."""
        return dataclasses.asdict(self)


def decoded_examples(
    decoder: Decoder, data: Input, output: DecodeOutput, first: int
) -> Iterator[DecodedExample]:
    """Yields the examples of a batch, without padding.

    Batches without `example_ids` are numbered from `first` on. A prompt needs no target.

    Raises:
        UserError: an example with a target has no prompt.
    """
    batch, count = output.batch, 0
    is_prompt_B = _with_prompts(batch)
    for row, length in enumerate(output.prompt_lengths_B.tolist()):
        target = _target(decoder, batch, row, length)
        if target is None and not is_prompt_B[row]:
            continue
        number = int(batch['example_ids'][row]) if 'example_ids' in batch else first + count
        if not length:
            raise UserError(
                f'example {number} has a target, but its prompt has length 0 by `prefix_lengths` '
                'or `inputs_indicator`. A text continues at least one token: put a start token '
                'before the target'
            )
        texts = list(_texts(decoder, data, output.decoded, row))
        best = _until_end(decoder, np.array(texts[0].ids, np.int32))
        yield DecodedExample(
            number=number,
            prompt=_prompt(data, batch, row, length),
            target='' if target is None else data.text_of(target, 'labels'),
            is_right=None if target is None else best.tolist() == target.tolist(),
            texts=texts,
        )
        count += 1


def text_metrics(examples: Sequence[DecodedExample]) -> dict[str, float]:
    """Metrics of texts for any task; {} without examples.

    `num_decoded` is the number of prompts. `exact_match` is the share of those with a target whose
    best text is the target. `decoded_length` and `log_prob` are the mean length of the best texts
    in tokens, and their mean log probability in nats.
    """
    if not examples:
        return {}
    best = [example.texts[0] for example in examples]
    rights = [example.is_right for example in examples if example.is_right is not None]
    return {
        'num_decoded': float(len(examples)),
        **({'exact_match': float(np.mean(rights))} if rights else {}),
        'decoded_length': float(np.mean([len(text.ids) for text in best])),
        'log_prob': float(np.mean([text.log_prob for text in best])),
    }


def _target(decoder: Decoder, batch: Mapping[str, Any], row: int, length: int) -> np.ndarray | None:
    """The reference of a row; None where no label has a weight."""
    if 'labels' not in batch:
        return None
    labels = np.asarray(batch['labels'][row])
    weights = broadcast(weights_of(batch, 'labels'), batch['labels'].shape)[row]
    after = np.arange(weights.size) >= length - 1
    return _until_end(decoder, labels[after & (weights > 0)]) if weights.any() else None


def _with_prompts(batch: Mapping[str, Any]) -> np.ndarray:
    """True for rows that have a prompt without a target, bool [B]. Padding has none."""
    there = [batch[name] for name in _MARKS if name in batch]
    if not there:  # Then only weights of labels mark padding.
        there = [np.zeros(len(batch['ids'])) if 'labels' in batch else batch['ids']]
    found: np.ndarray = (np.asarray(there[0]).reshape(len(there[0]), -1) != 0).any(axis=1)
    for name in weight_features(batch):
        if np.ndim(batch[name]) == 1:
            found = found & (np.asarray(batch[name]) != 0)
    return found


def _texts(decoder: Decoder, data: Input, decoded: Decoded, row: int) -> Iterator[Text]:
    for each, length in enumerate(decoded.lengths_BN[row].tolist()):
        ids = np.asarray(decoded.ids_BNT[row, each, :length])
        yield Text(
            ids.tolist(),
            data.text_of(_until_end(decoder, ids), 'labels'),
            float(decoded.log_probs_BN[row, each]),
            float(decoded.scores_BN[row, each]),
        )


def _prompt(data: Input, batch: Mapping[str, Any], row: int, length: int) -> str:
    if 'encoder_ids' in batch:
        ids, key = batch['encoder_ids'][row], 'encoder_ids'
        if 'encoder_weights' in batch:
            ids = ids[batch['encoder_weights'][row] > 0]
    else:
        ids, key = batch['ids'][row, :length], 'labels'
    # The start token is not text.
    return data.text_of(ids[1:] if len(ids) and ids[0] == data.start_id else ids, key)


def _until_end(decoder: Decoder, ids: np.ndarray) -> np.ndarray:
    ends = np.flatnonzero(np.isin(ids, decoder.end_ids()))
    return ids[: ends[0]] if ends.size else ids
