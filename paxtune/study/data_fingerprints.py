"""Fingerprints of the data that an experiment reads."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainer.program import setup
from trainer.runtime.signals import Signal
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.experiment import Tunable


class MissingDataError(UserError):
    """Data of an experiment is not there, or does not suit its task."""


def fingerprints(parts: 'Mapping[str, Tunable]') -> dict[str, str]:
    """Computes the fingerprints of the data by input, once the data are known to be there.

    Args:
        parts: the experiments of a trial, by the name of the sub-experiment ('' without any).

    Raises:
        MissingDataError: data are not there, or do not suit the task.
    """
    found: dict[str, str] = {}
    for name, part in parts.items():
        try:
            setup.prepare_inputs(part)
        except Signal:
            pass  # The trials that choose so will report it; others may choose otherwise.
        except UserError as error:
            raise MissingDataError(
                f'sub_experiments.{name}: {error}' if name else str(error)
            ) from error
        prints = {path: data.fingerprint() for path, data in part.inputs_by_path.items()}
        found |= {f'{path}:{name}' if name else path: text for path, text in prints.items()}
    return found
