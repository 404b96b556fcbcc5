"""Patterns of errors, by type and message."""

import re
import sys

from trainer.symbolic.component import Component
from trainer.symbolic.errors import text_of


class ErrorPattern(Component):
    """Matches errors of one class, and of classes derived from it.

    Attributes:
        type: the name of the class, with or without its module: 'ValueError',
            'jax.errors.JaxRuntimeError'.
        message: a regular expression that is searched for in the text of the error; None for any
            text.

    Example:
        >>> out_of_memory = ErrorPattern('RuntimeError', 'RESOURCE_EXHAUSTED')
        >>> out_of_memory.matches(RuntimeError('RESOURCE_EXHAUSTED: out of memory'))
        True
        >>> out_of_memory.matches(RuntimeError('another'))
        False
    """

    type: str
    message: str | None = None

    def check(self) -> None:
        if not all(part.isidentifier() for part in self.type.split('.')):
            raise ValueError(f'type must be the name of an exception class: {self.type!r}')
        if self.message is not None:
            try:
                re.compile(self.message)
            except re.error as error:
                raise ValueError(
                    f'message must be a regular expression: {self.message!r}: {error}'
                ) from error

    def matches(self, error: BaseException) -> bool:
        """True if an error is one of these."""
        if not any(_is_called(cls, self.type) for cls in type(error).__mro__):
            return False
        return self.message is None or re.search(self.message, text_of(error)) is not None


def _is_called(cls: type, name: str) -> bool:
    full_name = f'{cls.__module__}.{cls.__qualname__}'
    if f'.{full_name}'.endswith(f'.{name}'):
        return True
    # A library may offer a class in another module than it is defined in. Only loaded modules
    # count: a name from a file imports nothing.
    module_name, _, attribute = name.rpartition('.')
    module = sys.modules.get(module_name)
    return module is not None and vars(module).get(attribute) is cls
