"""The arguments of a function of a trial's values, which are decided before the first trial."""

import inspect
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pyglove as pg
from absl import logging

from paxtune.objectives.measurement import in_words
from trainer.symbolic.derived import SHARED
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.user_code import code_of, unwrapped

_ALL_VALUES = re.compile(
    r'_|[cdhpsvx]|.*(vals?$|values|conf|cfg|param|args?$|argument|hyper|^hps?$|space|points?$|decision'
    r'|choices|sample|sugg|candidate|settings|options|specs?$|^kw|dict|given|chosen|assignment|knobs)'
    r'.*',
    re.IGNORECASE,
)
"""Names of a parameter that gets all values."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_REST = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD

Parameters = Mapping[str, inspect.Parameter]


def signature_of(function: Any) -> inspect.Signature:
    """Returns the signature of a function.

    Raises:
        UserError: it is no function, it is asynchronous, or Python knows no signature of it.
    """
    name = name_of(function)
    if not callable(function):
        raise UserError(f'what: expected an experiment or a function, not {in_words(function)}')
    own = unwrapped(function)
    for called in (own, inspect.getattr_static(type(own), '__call__', None)):
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise UserError(
                f'{name} is an async function, and trials call plain ones: write a function that '
                f'returns asyncio.run({name}(…))'
            )
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UserError(
            f'{name} has no signature that Python knows: write a function around it, whose '
            f'parameters have the names of the space, such as lambda x: {name}(x)'
        ) from error


def name_of(function: Any) -> str:
    """Returns the name of a function, for people."""
    found = getattr(unwrapped(function), '__qualname__', None) or type(function).__qualname__
    return str(found).rpartition('<locals>.')[2]


def keys_of(values: Any, function: Callable[..., Any]) -> list[str] | None:
    """Returns the names of the values of a space for a function; None where it is an object.

    A stored space has its shared decisions in a mapping, too, which is no value of its own.
    """
    if not isinstance(values, pg.Dict):
        return None
    found = [str(key) for key in values]
    is_scope = SHARED in found and isinstance(values.sym_getattr(SHARED), pg.Dict)
    if is_scope and SHARED not in signature_of(function).parameters:
        found.remove(SHARED)
    return found


def require_fitting(function: Callable[..., Any], space: Any) -> None:
    """Raises UserError if a function cannot take the values of a space; warns of hidden ones."""
    keys = keys_of(space, function)
    if not signature_of(function).parameters or are_by_name(function, keys):
        return
    if hidden := hidden_keys(function, keys or [], type(space)):
        name = hidden[0]
        logging.warning(
            'space: values.%s is a method of the dict of values: write values[%r], or give the '
            'function parameters with the names of the space',
            name,
            name,
        )


def are_by_name(function: Callable[..., Any], keys: Collection[str] | None) -> bool:
    """Returns True if a function takes values by name, and False if it takes them as one.

    Args:
        function: has parameters.
        keys: the names of the values; None if they have none.

    Raises:
        UserError: its parameters and the names differ.
    """
    parameters = signature_of(function).parameters
    named = {each.name for each in parameters.values() if each.kind not in _REST}
    takes_rest = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    missing = {each.name for each in _required(parameters)} - {*(keys or ()), 'trial'}
    if keys is not None and not missing and (takes_rest or named.issuperset(keys)):
        return True
    if not _can_take_all(parameters):
        needs = 'one parameter for the values, and one more for the trial'
        raise UserError(
            f'{name_of(function)} needs {needs}'
            if keys is None
            else _difference(function, named, keys)
        )
    if keys is not None and not _takes_all(function, parameters, keys):
        raise UserError(_difference(function, named, keys))
    return False


def bound(
    function: Callable[..., Any], values: Any, keys: Collection[str] | None, trial: object
) -> inspect.BoundArguments:
    """Makes the arguments of a call.

    Args:
        function: is called.
        values: of the trial.
        keys: the names of the values; None if they have none.
        trial: for a parameter `trial`, and for a second one that is required.

    Raises:
        UserError: the parameters and the names differ.
    """
    signature = signature_of(function)
    parameters = signature.parameters
    given: dict[str, Any] = {}
    if are_by_name(function, keys):
        given = {key: values[key] for key in keys or ()}
    else:
        first, *_ = parameters.values()
        required = [each.name for each in _required(parameters) if each.kind in _POSITIONAL]
        given = dict.fromkeys(required[1:2], trial)
        given[first.name] = (values,) if first.kind is first.VAR_POSITIONAL else values
    if 'trial' in parameters:
        given = {'trial': trial, **given}
    arguments = {name: given.pop(name) for name in parameters if name in given}
    arguments |= {each.name: given for each in parameters.values() if each.kind is each.VAR_KEYWORD}
    return inspect.BoundArguments(signature, arguments)


def hidden_keys(function: Callable[..., Any], keys: Collection[str], kind: type) -> list[str]:
    """Lists keys that a function reads as attributes of a mapping, where they are its methods."""
    code = list(_codes(function))
    attributes = {name for each in code for name in each.co_names}
    texts = {text for each in code for text in each.co_consts if isinstance(text, str)}
    return [key for key in keys if hasattr(kind, key) and key in attributes - texts]


def _required(parameters: Parameters) -> list[inspect.Parameter]:
    found = [each for each in parameters.values() if each.kind not in _REST]
    return [each for each in found if each.default is each.empty]


def _can_take_all(parameters: Parameters) -> bool:
    """Returns True if a call can give the first parameter all values, a second one the trial."""
    required, (first, *_) = _required(parameters), parameters.values()
    if first.kind is first.VAR_POSITIONAL:
        return not required
    return len(required) <= 2 and all(each.kind in _POSITIONAL for each in (first, *required))


def _takes_all(function: Callable[..., Any], parameters: Parameters, keys: Collection[str]) -> bool:
    """Returns True if the first parameter is meant for all values.

    Its name says so, or its use, or that it is the only parameter for several values.
    """
    first, *others = parameters.values()
    if first.kind is first.VAR_POSITIONAL or first.name == 'values':
        return True
    if any(each.name in keys for each in others):
        return False
    if _names_in(function) & ({*keys} - {first.name}):
        return True  # The function reads them as attributes or by keys.
    if first.name in keys or nearest(first.name, keys) or (first.name, len(keys)) == ('x', 1):
        return False
    needed = [each.name for each in _required(parameters) if each.name != 'trial']
    is_alone = needed == [first.name] and len(keys) > 1
    return is_alone or _ALL_VALUES.fullmatch(first.name) is not None


def _names_in(function: Callable[..., Any]) -> set[str]:
    """Returns the names and texts in the code of a function; a function without code has none."""
    found = [each for code in _codes(function) for each in (*code.co_names, *code.co_consts)]
    return {each for each in found if isinstance(each, str)}


def _codes(function: Callable[..., Any]) -> Iterator[types.CodeType]:
    left: list[object] = [code_of(function)]
    while left:
        if isinstance(each := left.pop(), types.CodeType):
            yield each
            left += each.co_consts


def _difference(function: Callable[..., Any], named: Collection[str], keys: Collection[str]) -> str:
    own = ', '.join(name for name in signature_of(function).parameters if name in named)
    return (
        f'{name_of(function)} has the parameters {own or "none"}, and the space has '
        f'{", ".join(keys)}: give the parameters the names of the space (**config takes any '
        'others), or name one `values`, which gets all of them'
    )
