from collections.abc import Mapping, Sequence

import numpy as np

from trainer.symbolic.component import Component


class Interpretation(Component):
    """The meaning that an input gives to token ids, and to the outputs for its examples."""

    def vocabulary_name(self) -> str:
        """Names the vocabulary of token ids: equal names, equal ids. '' without token ids."""
        return ''

    def ids_to_strings(
        self, ids: np.ndarray, lengths: np.ndarray | None = None, key: str = 'labels'
    ) -> list[str]:
        """Token ids as text; as numbers if the input has no vocabulary.

        Args:
            ids: int32 [B, T].
            lengths: number of ids of each row that count, int32 [B]; None for all.
            key: their feature, for inputs with a vocabulary for each feature.
        """
        rows = ids if lengths is None else [row[:n] for row, n in zip(ids, lengths, strict=True)]
        return [self.text_of(row, key) for row in rows]

    @property
    def start_id(self) -> int:
        """The id before the first token of a text in `ids`, which is no text."""
        return 0

    def text_of(self, ids: np.ndarray, key: str) -> str:
        """The text of one row of ids. Subclasses with a vocabulary override it."""
        return ' '.join(map(str, ids.tolist()))

    @property
    def wants_scores(self) -> bool:
        """True if `score_metrics` has metrics."""
        return False

    def score_metrics(self, scores: Mapping[int, float]) -> dict[str, float]:
        """Metrics that the data define on the likelihood of targets.

        Args:
            scores: the log probability of each example's target, by `example_ids`; that of padding,
                0, does not count. {} if `wants_scores` is false.
        """
        return {}

    def predict_metrics(self, outputs: Mapping[int, Sequence[int]]) -> dict[str, float]:
        """Metrics that the data define on generated text: ids, by the number of the example."""
        return {}
