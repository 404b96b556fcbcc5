"""The arguments of a worker that its study and its runner determine."""

import argparse
import dataclasses
from typing import Self


@dataclasses.dataclass(frozen=True)
class WorkerArguments:
    """The work of a worker. Each field is a flag of `paxtune.worker`.

    Attributes:
        definition: the fingerprint of the study's definition.
        function: `MODULE:NAME` of the function to call in each trial; None to train experiments.
        argv: the arguments of the function's script, as JSON; '' for a function of a module.
        pack: the number of trials to train at a time.
    """

    definition: str
    function: str | None = None
    argv: str = ''
    pack: int = 1

    def flags(self) -> tuple[str, ...]:
        """Renders the flags of the fields that differ from their defaults."""
        given = ((each, getattr(self, each.name)) for each in dataclasses.fields(self))
        return tuple(f'--{each.name}={value}' for each, value in given if value != each.default)

    @classmethod
    def add_flags(cls, flags: argparse.ArgumentParser) -> None:
        """Adds the flags of the fields."""
        for each in dataclasses.fields(cls):
            is_required = each.default is dataclasses.MISSING
            flags.add_argument(
                f'--{each.name}',
                required=is_required,
                default=None if is_required else each.default,
                type=int if each.type is int else str,
                help=_HELP[each.name],
            )

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """Returns the arguments that flags state."""
        return cls(**{each.name: getattr(args, each.name) for each in dataclasses.fields(cls)})


_HELP = {
    'definition': "fingerprint of the study's definition",
    'function': 'MODULE:NAME of the function to call in each trial',
    'argv': 'arguments of its script, as JSON',
    'pack': 'number of trials to train at a time',
}
