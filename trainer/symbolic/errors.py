"""Errors with messages for users, and classification of errors."""

import contextlib
import difflib
import errno
import re
from collections.abc import Iterable, Iterator


class UserError(Exception):
    """An error that the user of a command can fix.

    The message names the fault, its place (the path in the experiment), the expected value and the
    remedy. Commands print it without a traceback and exit with `exit_code`.
    """

    exit_code = 2

    def __str__(self) -> str:
        # The message may quote input of any length.
        return '\n'.join(map(shortened, super().__str__().split('\n')))


class UnavailableError(UserError):
    """A service that does not answer. The same command may succeed later."""

    exit_code = 75  # EX_TEMPFAIL


@contextlib.contextmanager
def prefixed(where: str) -> Iterator[None]:
    """Context manager that puts a place before the message of a UserError without it."""
    try:
        yield
    except UserError as error:
        if str(error).startswith((f'{where}:', f'{where}.', f'{where}[')):
            raise
        raise UserError(f'{where}: {error}') from error


class ShapeError(UserError, ValueError):
    """Arrays of the task do not fit together. Broadcasting would hide it."""


class CheckpointGoneError(UserError):
    """The checkpoint of a requested step does not exist (any more)."""


class SaveError(RuntimeError):
    """The checkpoint at `path` could not be written. The one before it is intact."""

    def __init__(self, message: str, path: str = ''):
        super().__init__(message)
        self.path = path


class NonFiniteLossError(FloatingPointError):
    """The training loss, or the norm of its gradients, became NaN or infinite at `step`."""

    def __init__(self, message: str, step: int = 0) -> None:
        super().__init__(message)
        self.step = step

    def located(self, saved: tuple[int, str] | None, reason: str = '') -> 'NonFiniteLossError':
        """The same error with the batch, and the last good checkpoint: its step and its path.

        Args:
            saved: step and path of that checkpoint.
            reason: the value in the batch that explains the error, if one does.

        Example:
            >>> text = str(NonFiniteLossError('it is nan at step 7', 7).located((5, 'run/5')))
            >>> text[-40:]
            '--from_checkpoint=run/5 --skip_batches=1'
        """
        # Each step reads one batch, so the batch has the number of the step.
        look = ['--input=train_input', '--num_batches=1']
        last, before = 'there is no checkpoint from before that', 0
        if saved is not None:
            before, path = saved
            last = f'the last checkpoint from before that is {path}'
            look.append(f'--from_checkpoint={path}')
        if self.step > before + 1:
            look.append(f'--skip_batches={self.step - before - 1}')
        why = reason and f': {reason}'
        return NonFiniteLossError(
            f'{self}{why}; {last}. Its batch is number {self.step} of train_input: '
            f'python -m trainer.inspect_input --exp=… {" ".join(look)}',
            self.step,
        )


class OtherProcessError(Exception):
    """Another process of the job failed. The message names the process and its error."""


class LostProcessError(Exception):
    """Another process of the job does not answer any more. See `trainer.runtime.processes`."""


def text_of(error: BaseException) -> str:
    """Returns the message of an error, of any class: the user's own may fail to make it."""
    try:
        return str(error)
    except Exception as failure:
        return f'its message cannot be made ({type(failure).__name__})'


def in_short(error: Exception) -> str:
    """The message of an error on one line: PyGlove's contain a whole experiment, or nothing.

    Example:
        >>> in_short(ValueError('expected a Stack: Dict(\\n  x=1\\n)')), in_short(AssertionError())
        ('expected a Stack: Dict( x=1 )', 'AssertionError')
    """
    return shortened(' '.join(text_of(error).split()), max_length=600) or type(error).__name__


def shortened(line: str, max_length: int = 4000) -> str:
    """Removes the middle of a line that is too long.

    Example:
        >>> shortened('task.model: not a model: ' + 'x' * 99 + ' (an integer)', max_length=40)
        'task.model: not a model: xxxx … integer)'
    """
    if len(line) <= max_length:
        return line
    # A message begins with the place of a fault, and ends with the remedy.
    tail = max_length // 5
    return f'{line[: max_length - tail - 3]} … {line[-tail:]}'


def nearest(name: str, legal: Iterable[str]) -> str:
    """Suggests the names in `legal` that are close to `name`, as a sentence; empty without any.

    Example:
        >>> nearest('lerning_rate', ['learning_rate', 'schedule'])
        'Did you mean learning_rate?'
        >>> nearest('x', ['learning_rate'])
        ''
    """
    close = difflib.get_close_matches(name, list(legal), n=3)
    return f'Did you mean {" or ".join(close)}?' if close else ''


# TensorStore raises a ValueError with the system's message, SQLite an error of its own.
_FULL = re.compile(
    r"No space left on device|Disk quota exceeded|os_error_code='(28|122)'|disk is full"
)


def full_disk_text(error: BaseException, where: object = 'this run') -> str:
    """Renders the remedy for a full disk; `where` is the directory of the run, if known."""
    reason = shortened(' '.join(text_of(error).split()), max_length=240)
    return (
        f'no space is left on the disk of {where} ({reason}). Make room, and resume: everything '
        'continues from its last checkpoint'
    )


def is_disk_full(error: BaseException) -> bool:
    """True if an error, or one of its causes, is a full disk or quota.

    Example:
        >>> is_disk_full(OSError(errno.ENOSPC, 'No space left on device'))
        True
        >>> is_disk_full(ValueError('RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes'))
        False
    """
    return any(
        getattr(each, 'errno', None) in (errno.ENOSPC, errno.EDQUOT) or _FULL.search(text_of(each))
        for each in causes(error)
    )


def causes(error: BaseException) -> list[BaseException]:
    """Lists an error, its causes, contexts that `from None` does not hide, members of groups."""
    found = [error]
    for each in found:
        hidden = None if each.__suppress_context__ else each.__context__
        members = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        more = (*members, each.__cause__, hidden)
        found += [other for other in more if other is not None and other not in found]
    return found
