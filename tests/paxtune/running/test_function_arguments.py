"""The arguments of functions, decided before the first trial."""

import asyncio
import functools
import math
from collections.abc import Callable
from typing import Any

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.running.function_arguments import are_by_name, bound
from tests.factories.studies import states
from trainer.symbolic.errors import UserError


def product(lr: float, width: float) -> float:
    return lr * width


class Caller:
    async def later(self, x: float) -> float:
        return x

    def __call__(self, x: float) -> float:
        return x


class LaterCaller:
    async def __call__(self, x: float) -> float:
        return x


async def later(x: float) -> float:
    return x


async def yields_later(x: float) -> Any:
    yield x


def defaults(lr: float, width: int = 3, **rest: float) -> float:
    return lr + width + sum(rest.values())


@pytest.mark.parametrize(
    ('function', 'keys'),
    [
        (lambda **config: 0.0, ['a', 'b c']),
        (product, ['lr', 'width']),
        (defaults, ['lr', 'wd']),
        (lambda trial, lr: lr, ['lr']),
        (functools.partial(product, width=3), ['lr']),
        (functools.partial(product, 3), ['width']),
        (math.sin, ['x']),
        (Caller(), ['x']),
    ],
)
def test_values_are_passed_by_name(function: Callable[..., Any], keys: list[str]) -> None:
    assert are_by_name(function, keys)


@pytest.mark.parametrize(
    'function',
    [
        lambda values: 0.0,
        lambda config, trial: 0.0,
        lambda anything: anything.x + anything['y'],
        lambda x: x.x + x.y,
        lambda *all_of_them: 0.0,
        lambda _: 0.0,
        lambda theta: 0.0,
        lambda z, trial: 0.0,
        lambda inputs, verbose=False: 0.0,
        functools.partial(lambda theta, data: 0.0, data=3),
    ],
)
def test_values_are_passed_as_one(function: Callable[..., Any]) -> None:
    assert not are_by_name(function, ['x', 'y'])


@pytest.mark.parametrize(
    ('function', 'keys'),
    [
        (lambda lr: lr, ['x']),
        (lambda y: y, ['x']),
        (lambda x, yy: x + yy, ['x', 'y']),
        (lambda lr: lr, ['lr', 'wd']),
        (lambda lrr: lrr, ['lr']),
        (lambda lrr: lrr, ['lr', 'wd']),
        (lambda theta: theta, ['x']),
        (lambda theta, more: theta, ['x', 'y']),
        (lambda lr, *, width: lr, ['lr']),
        (lambda lr=1.0: lr, ['rate']),
        (product, ['lr']),
        (product, ['lr', 'widht']),
        (product, ['lr', 'width', 'wd']),
        (defaults, ['wd']),
    ],
)
def test_near_misses_are_refused_with_both_lists(
    function: Callable[..., Any], keys: list[str]
) -> None:
    space = {key: pg.floatv(0.0, 1.0) for key in keys}
    with pytest.raises(UserError, match='has the parameters') as raised:
        tune(function, space=space, objective='minimize', num_trials=1)
    text = str(raised.value)
    assert f'the space has {", ".join(keys)}' in text
    code: Any = getattr(function, '__code__', None)
    assert all(name in text for name in code.co_varnames[: code.co_argcount])


@pytest.mark.parametrize(
    ('function', 'message'),
    [
        (max, r'max has no signature .* lambda x: max\(x\)'),
        (later, r'later is an async function.* asyncio\.run\(later\(…\)\)'),
        (yields_later, 'async function'),
        (functools.partial(later), 'async function'),
        (Caller().later, r'Caller\.later is an async function'),
        (LaterCaller(), 'async function'),
        (3, 'expected an experiment or a function, not 3'),
    ],
)
def test_other_functions_are_refused_before_the_first_trial(function: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tune(function, space={'x': pg.floatv(0.0, 1.0)}, objective='minimize', num_trials=1)


def test_arguments_are_those_of_a_call() -> None:
    def called(function: Callable[..., Any], values: dict[str, Any]) -> Any:
        arguments = bound(function, values, [*values], 'the trial')
        return function(*arguments.args, **arguments.kwargs)

    assert called(lambda **config: config, {'a b': 1, 'trial': 2}) == {'a b': 1, 'trial': 2}
    assert called(lambda **config: config, {'a': 1}) == {'a': 1}
    assert called(lambda trial, **config: (trial, config), {'a': 1}) == ('the trial', {'a': 1})
    assert called(defaults, {'lr': 1, 'wd': 2}) == 6
    assert called(abs, {'x': -2}) == 2
    assert called(lambda values, trial=None: trial, {'x': 1}) == 'the trial'
    assert called(lambda values, t: (values['x'], t), {'x': 1}) == (1, 'the trial')
    assert called(lambda x, /, y: (x, y), {'y': 1, 'x': 2}) == (2, 1)
    assert called(lambda *values: values, {'y': 1}) == ({'y': 1},)


def test_shared_decisions_of_a_stored_space_are_no_value_of_their_own() -> None:
    def width() -> Any:
        return pg.oneof([1, 2, 3], name='width')

    given: Any = {'space': {'a': width(), 'b': width()}, 'objective': 'minimize'}
    seen: list[list[str]] = []

    def notes(**config: int) -> float:
        seen.append(sorted(config))
        return 1.0

    study = tune(notes, num_trials=1, **given)  # In a worker, the space was stored, too.
    study = tune(notes, study=study, num_trials=2)
    with tune(lambda a, b: a + b, study=study, num_trials=3) as study:
        assert states(study) == ['COMPLETED'] * 3
    own = {'shared': pg.oneof([1, 2]), 'a': pg.oneof([3])}
    tune(notes, space=own, objective='minimize').close()
    assert seen == [['a', 'b'], ['a', 'b'], ['a', 'shared'], ['a', 'shared']]


def test_a_key_that_is_a_method_of_the_values_warns(caplog: pytest.LogCaptureFixture) -> None:
    given: Any = {'objective': 'minimize', 'num_trials': 1}
    space = {'items': pg.floatv(0.0, 1.0)}
    for function in (lambda values: values['items'], lambda items: items):
        with tune(function, space=space, **given) as study:
            assert study.best is not None
        assert not caplog.messages
    tune(lambda values: values.items, space=space, **given).close()
    assert "values.items is a method of the dict of values: write values['items']" in caplog.text


def test_a_coroutine_that_a_plain_function_returns_is_an_error_of_its_trial() -> None:
    with tune(lambda x: later(x), space={'x': pg.oneof([1, 2])}, objective='minimize') as study:
        assert 'must return a number or metrics by name, not a coroutine' in str(
            study.trials[0].reason
        )
    plain = lambda x: asyncio.run(later(x))  # noqa: E731
    with tune(plain, space={'x': pg.oneof([1, 2])}, objective='minimize') as study:
        assert study.best is not None
