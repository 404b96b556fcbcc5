from collections.abc import Collection
from typing import Any

from trainer.learner.paths import Path, check_patterns, leaves, matching, select
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

_FIELD = 'task.learner.freeze'


class Freeze(Component):
    """Trains all parameters except those that match a pattern.

    A frozen parameter has no gradient, no weight decay, no optimizer state and no part in norms.

    Attributes:
        patterns: regular expressions that match whole paths of parameters, layer by layer:
            `stack.layers_3.attention.query`, or `stack.*` for all in the stack.
    """

    patterns: list[str]

    def check(self) -> None:
        if not self.patterns:
            raise ValueError('patterns must not be empty')
        check_patterns(self.patterns, 'patterns')

    def trained(self, params: Any) -> Any:
        """The trained part of a tree of parameters.

        Raises:
            UserError: a pattern selects nothing or splits a scanned run, or nothing is trained.
        """
        kept = self._kept(matching(self.patterns, params, f'{_FIELD}.patterns'), params)
        if not kept:
            raise UserError(f'{_FIELD}: it leaves no parameter to train')
        return select(params, kept)

    def _kept(self, matched: set[Path], params: Any) -> Collection[Path]:
        return set(leaves(params)) - matched


class TrainOnly(Freeze):
    """Trains only the parameters that match a pattern."""

    def _kept(self, matched: set[Path], params: Any) -> Collection[Path]:
        return matched
