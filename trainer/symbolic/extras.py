"""Libraries that an installation may lack: the extras of pyproject.toml."""

import contextlib
import importlib.util
from collections.abc import Iterator

from trainer.symbolic.errors import UserError


class MissingExtraError(UserError):
    """A library of an extra is not installed."""


def require(extra: str, user: str, *libraries: str) -> None:
    """Raises MissingExtraError unless all libraries are installed. Imports none of them.

    Args:
        extra: installs the libraries; several are joined by ` or `.
        user: a flag, a component or a function that needs them, for the message.
        libraries: names of modules.

    Example:
        >>> require('tube', 'TubeInput', 'json', 'tube_reader')
        Traceback (most recent call last):
        ...
        trainer.symbolic.extras.MissingExtraError: TubeInput needs tube_reader:
        pip install 'paxtune[tube]'
    """
    missing = [each for each in libraries if importlib.util.find_spec(each) is None]
    if missing:
        extras = ' or '.join(f"'paxtune[{each}]'" for each in extra.split(' or '))
        raise MissingExtraError(f'{user} needs {", ".join(missing)}: pip install {extras}')


@contextlib.contextmanager
def needed(extra: str, user: str) -> Iterator[None]:
    """Context manager around imports of the libraries of an extra.

    Raises:
        MissingExtraError: one of them is not installed.
        UserError: one of them cannot be imported.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        require(extra, user, (error.name or '?').partition('.')[0])
        raise UserError(f'{user}: {error}') from error
    except ImportError as error:
        raise UserError(f'{user}: {error.name} cannot be imported: {error}') from error
