import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trainer.decoding.base import Decoded, DecodeOutput, Decoder
from trainer.inputs.base import Input
from trainer.inputs.tokens.vocabulary import PAD_ID
from trainer.inputs.weights import broadcast, weights_of


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
        target: the reference in the data.
        is_right: the best text equals the target, token for token.
        texts: the best first.
    """

    number: int
    prompt: str
    target: str
    is_right: bool
    texts: list[Text]

    def to_json(self) -> dict[str, Any]:
        """Converts it to JSON data."""
        return dataclasses.asdict(self)


def decoded_examples(
    decoder: Decoder, data: Input, output: DecodeOutput, first: int
) -> Iterator[DecodedExample]:
    """Yields the examples of a batch, without padding.

    Batches without `example_ids` are numbered from `first` on.
    """
    batch, count = output.batch, 0
    weights_BT = broadcast(weights_of(batch, 'labels'), batch['labels'].shape)
    for row, length in enumerate(output.prompt_lengths_B.tolist()):
        weights = weights_BT[row]
        if not weights.any():
            continue
        after = np.arange(weights.size) >= length - 1
        labels = np.asarray(batch['labels'][row])
        target = _until_end(decoder, labels[after & (weights > 0)])
        texts = list(_texts(decoder, data, output.decoded, row))
        best = _until_end(decoder, np.array(texts[0].ids, np.int32))
        yield DecodedExample(
            number=int(batch['example_ids'][row]) if 'example_ids' in batch else first + count,
            prompt=_prompt(data, batch, row, length),
            target=data.text_of(target, 'labels'),
            is_right=best.tolist() == target.tolist(),
            texts=texts,
        )
        count += 1


def text_metrics(examples: Sequence[DecodedExample]) -> dict[str, float]:
    """Metrics of texts for any task; {} without examples.

    `num_decoded` is the number of prompts. `exact_match` is the share of them whose best text is
    the target. `decoded_length` and `log_prob` are the mean length of the best texts in tokens,
    and their mean log probability in nats.
    """
    if not examples:
        return {}
    best = [example.texts[0] for example in examples]
    return {
        'num_decoded': float(len(examples)),
        'exact_match': float(np.mean([example.is_right for example in examples])),
        'decoded_length': float(np.mean([len(text.ids) for text in best])),
        'log_prob': float(np.mean([text.log_prob for text in best])),
    }


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
    return data.text_of(ids[1:] if len(ids) and ids[0] == PAD_ID else ids, key)


def _until_end(decoder: Decoder, ids: np.ndarray) -> np.ndarray:
    ends = np.flatnonzero(np.isin(ids, list(decoder.eos_ids)))
    return ids[: ends[0]] if ends.size else ids
