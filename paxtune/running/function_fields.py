"""The space and the objective of a function, and their words for users of other tools."""

import copy
from collections.abc import Collection, Iterator, Mapping, MappingView
from typing import Any

import pyglove as pg

from paxtune.objectives.measurement import in_words
from paxtune.objectives.rewards import MetricReward, Objectives, Reward
from trainer.symbolic.errors import UserError
from trainer.symbolic.identity import validate_decisions
from trainer.symbolic.plain_numbers import is_array, plain

_GOALS = {
    goal[:length]: goal
    for goal in ('minimize', 'maximize')
    for length in range(len('min'), len(goal) + 1)
} | {'minimise': 'minimize', 'maximise': 'maximize'}
_TYPE = pg.JSONConvertible.TYPE_NAME_KEY
_MAX_WORDS, _MAX_SHOWN = 3, 80
_DISTRIBUTIONS = ('ConfigSpace', 'hyperopt', 'optuna', 'ray.tune', 'scipy.stats', 'skopt')


def space_of(given: Any) -> Any:
    """Makes the symbolic value of a space.

    Raises:
        UserError: it is no dict and no symbolic object, holds no decision, or holds values that
            other tools take for one.
    """
    if isinstance(given, pg.hyper.DynamicEvaluationContext):  # `pg.hyper.trace` returns it.
        given = given.hyper_dict
    for path, each in _parts(given, ''):
        _require_holdable(path, each)
    words = [text for path, each in _parts(given, '') if (text := _words(path, each))]
    if words:
        text = '; '.join(words[:_MAX_WORDS])
        raise UserError(f'space: {text}. To leave it as it is, put it into the function')
    validate_decisions(given)  # A `pg.Dict` holds copies.
    value = pg.Dict(given) if type(given) is dict else given
    if not isinstance(value, pg.Object | pg.Dict):
        raise UserError(f'space: expected a dict or a symbolic object, not {type(given).__name__}')
    if not pg.contains(value, type=pg.hyper.HyperPrimitive):
        raise UserError(
            'There is nothing to search: space holds no decision. Write one as pg.oneof([…]) or '
            'pg.floatv(low, high)'
        )
    return value


def copied(space: Any) -> Any:
    """Copies the value of a space; raises UserError for a part that Python cannot copy."""
    try:
        return pg.clone(space, deep=True)
    except TypeError as error:
        for path, each in _parts(space, ''):
            try:
                copy.deepcopy(each if not isinstance(each, dict | list | pg.Object) else None)
            except TypeError:
                raise UserError(
                    f'space: {path} cannot be copied ({error}): put it into the function'
                ) from None
        raise


def _require_holdable(path: str, value: Any) -> None:
    """Raises UserError for a dict or a list that PyGlove cannot hold, or takes for a class."""
    where = path or 'it'
    if isinstance(value, dict):
        if _TYPE in value:
            why = f'{where} has the key {_TYPE!r}, which stands for classes'
            raise UserError(f'space: {why}: give it another name. {_words(path, value)}'.rstrip())
        if wrong := [key for key in value if not isinstance(key, str | int)]:
            raise UserError(f'space: the name {wrong[0]!r} in {where} must be a text')
    # PyGlove compares the first item with a text.
    elif isinstance(value, list) and value and is_array(value[0]):
        raise UserError(f'space: {where} is a list that begins with an array: give array.tolist()')


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _parts(child, f'{path}.{name}' if path else str(name))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            yield from _parts(child, f'{path}[{i}]')


def _words(path: str, value: Any) -> str:
    """Says how a value is written that users of other tools take for a decision; '' for others."""
    how = '' if path.endswith(']') else how_to_search(value)  # An item is a part of its list.
    given = ' '.join(in_words(value).split())  # An array has lines.
    return f'{path} is {given}: {how}' if how else ''


def how_to_search(value: Any) -> str:
    """Says how the decision is written that a value is in other tools; '' for other values."""
    choice = _decision(value)
    return f'to search it, write {choice}' if choice else ''


def _decision(value: Any) -> str:
    """Renders the decision that a value of other tools stands for; '' for other values."""
    if isinstance(value, dict):  # NNI and Weights & Biases write decisions as dicts.
        is_choice = 'choice' in str(value.get(_TYPE)) and '_value' in value
        is_range = {*value} - {'distribution'} == {'min', 'max'}
        bounds = (value['min'], value['max']) if is_range else ()
        return _decision(value['_value'] if is_choice else bounds)
    if isinstance(value, pg.Object):
        return ''
    if type(value).__module__.startswith(_DISTRIBUTIONS):
        return 'pg.floatv(low, high), paxtune.intv(low, high) or pg.oneof([…])'
    if is_array(value):
        value = value.tolist()
    is_pair = isinstance(value, tuple) and len(value) == 2
    if isinstance(value, range) and value.step == 1 and len(value) > 1:
        return f'paxtune.intv({value[0]}, {value[-1]})'
    if is_pair and all(type(each) is int for each in value):
        return f'paxtune.intv({value[0]}, {value[1]})'
    if is_pair and all(type(plain(each)) in (int, float) for each in value):
        return f'pg.floatv({plain(value[0])!r}, {plain(value[1])!r})'
    if isinstance(value, list | tuple | set | frozenset | range) and _is_plain(value):
        text = repr(list(value))
        return f'pg.oneof({text if len(text) < _MAX_SHOWN else "[…]"})'
    # A generator or a view of a dict gives its values once, and to no other process.
    return 'pg.oneof([…])' if isinstance(value, Iterator | MappingView) else ''


def _is_plain(values: Collection[Any]) -> bool:
    """Returns True for values without parts of their own, which may hold decisions."""
    nested = [each for each in values if isinstance(each, list | tuple)]
    has_parts = any(isinstance(each, dict | pg.Object) for each in values)
    return len(values) > 0 and not has_parts and all(map(_is_plain, nested))


def objective_of(given: Any) -> Reward | Objectives:
    """Makes the objective of a function; raises UserError, with the words to write, for others."""
    if isinstance(given, Reward | Objectives):
        return given
    if isinstance(given, str) and given in _GOALS.values():
        return MetricReward(given, 'objective')
    words = list(dict.fromkeys(_rewards(given, ''))) or ["MetricReward('minimize', 'loss')"]
    written = words[0] if len(words) == 1 else f'Objectives([{", ".join(words)}])'
    raise UserError(
        "objective: expected 'minimize', 'maximize' or a reward, not "
        f'{in_words(given)}: write {written}'
    )


def _rewards(given: Any, name: str) -> list[str]:
    """Renders the rewards that a value of other tools stands for."""
    if isinstance(given, Reward):
        return [repr(given)]
    if isinstance(given, Mapping):
        return [words for key, value in given.items() for words in _rewards(value, str(key))]
    if isinstance(given, str):
        is_goal = given.lower() in _GOALS
        goal = _GOALS[given.lower()] if is_goal else 'minimize'
        own = (name or 'objective') if is_goal else given
        return [repr(goal)] if own == 'objective' else [f'MetricReward({goal!r}, {own!r})']
    if not isinstance(given, list | tuple):
        return []
    texts = [each for each in given if isinstance(each, str)]
    goals = [each for each in texts if each.lower() in _GOALS]
    if len(given) == len(texts) == 2 and len(goals) == 1:
        (metric,) = {*texts} - {*goals}
        return _rewards(goals[0], metric)
    found = enumerate(given, 1)
    return [words for i, each in found for words in _rewards(each, f'metric_{i}')]
