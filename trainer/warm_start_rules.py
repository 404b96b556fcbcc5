"""What a fresh run takes from the checkpoints of others, as fields of an experiment."""

import re

from trainer.learner.paths import check_patterns
from trainer.symbolic.component import Component

FILE = 'warm_start.json'
"""In a job's directory: where each array of a warm start comes from."""


class LoadRule(Component):
    r"""Which arrays of the run are loaded, and what they are called in the source.

    Names are those layer by layer, `stack.layers_0.feed_forward.up`, whether the layers are
    scanned, in the run or in the source, or not.

    Attributes:
        pattern: a regular expression that matches whole names, of parameters and of what else
            layers keep, such as running means.
        source: the name in the source, with what groups of the pattern matched: `\1`, `\g<name>`;
            `\g<0>` is the whole name.

    Example:
        >>> LoadRule(r'stack\.layers_(\d+)\.(.*)', r'encoder.layers_\1.\2').name_of(
        ...     'stack.layers_7.scale'
        ... )
        'encoder.layers_7.scale'
    """

    pattern: str = '.*'
    source: str = r'\g<0>'

    def check(self) -> None:
        check_patterns([self.pattern], 'pattern')
        try:
            re.compile(self.pattern).sub(self.source, '')
        except (re.error, IndexError) as error:
            raise ValueError(
                f'source: {self.source!r} does not go with the pattern {self.pattern!r}: {error}'
            ) from error

    def name_of(self, name: str) -> str | None:
        """The name in the source of what is called `name` in the run; None where it is no match."""
        matched = re.fullmatch(self.pattern, name)
        return None if matched is None else matched.expand(self.source)


class WarmStart(Component):
    """What a fresh run takes from one checkpoint. What no rule matches is drawn anew.

    What a rule matches must be in the source, with the shape that it has in the run. Where several
    rules match, the first one counts, whichever source it is of.

    Attributes:
        checkpoint: the path of a `checkpoints` directory, for the newest, or of a step in there.
        rules: what to load; the default is everything, under its own name.
        ignore: regular expressions of whole names: what they match is not loaded from here.
        load_optimizer: load the optimizer's state, too: that of the parameters which are loaded,
            and its counters.
        load_ema: load the averages of the parameters which are loaded, too. Otherwise they begin
            at the parameters.
        load_step: go on counting steps where the source was, as the learning rate's schedule and
            `num_train_steps` do, and what was spent. The data start anew in any case.
    """

    checkpoint: str
    rules: list[LoadRule] = [LoadRule()]
    ignore: list[str] = []
    load_optimizer: bool = False
    load_ema: bool = False
    load_step: bool = False

    def check(self) -> None:
        if not self.rules:
            raise ValueError('rules must name what to load; leave them out to load everything')
        check_patterns(self.ignore, 'ignore')

    def is_ignored(self, name: str) -> bool:
        """Whether what is called so in the run is not loaded from here."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignore)
