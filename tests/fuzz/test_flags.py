"""Fuzzes the flags that take a value: overrides, parts, `derived(…)`, decisions."""

import argparse
import functools
import json
from typing import Any

import pyglove as pg
import pytest
from hypothesis import strategies as st

import paxtune.command_line
import paxtune.search
import paxtune.studies.__main__
import paxtune.study.initial_trials
from paxtune.algorithms.encoding.sampling import draw as draw_decisions
from paxtune.experiment import Tunable
from paxtune.search_space.space import Space
from paxtune.storage.open_study import open_study
from tests.factories.toys import Toy, toy
from tests.factories.tunables import Kinds
from tests.fuzz import texts, watch
from trainer.command import decisions_given
from trainer.symbolic import fields, literals, overrides, registry
from trainer.symbolic.derived import derived, resolve
from trainer.symbolic.expressions import Expression
from trainer.symbolic.serialization import to_json_text

pytestmark = pytest.mark.hypothesis

_KINDS = {
    pg.typing.Int: 'integer',
    pg.typing.Float: 'number',
    pg.typing.Bool: 'boolean',
    pg.typing.Str: 'string',
    pg.typing.List: 'list',
}


def fields_of(experiment: Any) -> texts.Fields:
    """The paths in an experiment that a flag may set, and what they take."""
    found: list[tuple[str, str]] = []

    def visit(path: pg.KeyPath, value: Any, owner: Any) -> pg.TraverseAction:
        if isinstance(owner, pg.hyper.HyperPrimitive):
            return pg.TraverseAction.CONTINUE
        if owner is not None:
            spec = fields.spec_of(owner, path.key)
            found.append(
                (str(path), next((k for t, k in _KINDS.items() if isinstance(spec, t)), ''))
            )
        return pg.TraverseAction.ENTER

    pg.traverse(experiment, visit)
    return tuple(found)


CLOSED = toy(rate=0.1, layer=None, widths=[1, 2])
EXPERIMENTS: list[Any] = [CLOSED, toy(), Kinds()]


@pytest.mark.parametrize('experiment', EXPERIMENTS, ids=['closed', 'open', 'whole'])
def test_set(experiment: Any) -> None:
    def check(assignments: list[str]) -> None:
        made = watch.refused_or_taken(lambda: overrides.override(experiment, assignments))
        assert made is None or to_json_text(made)

    some = st.lists(texts.assignments(fields_of(experiment)), min_size=1, max_size=2)
    watch.for_all(200, check, some)


@pytest.mark.parametrize('experiment', EXPERIMENTS, ids=['closed', 'open', 'whole'])
def test_tune(experiment: Any) -> None:
    def check(assignment: str) -> None:
        def read() -> Any:
            made = overrides.tune(experiment, [assignment])
            return Space(made).value

        made = watch.refused_or_taken(read)
        assert made is None or to_json_text(made)

    watch.for_all(200, check, texts.assignments(fields_of(experiment), decided=False))


def test_values() -> None:
    def check(text: str) -> None:
        watch.refused_or_taken(lambda: (literals.parse(text, 'x'),))

    watch.for_all(600, check, texts.values(('rate', 'layer.heads')))


def test_algorithm() -> None:
    tunable = Kinds()

    def check(text: str) -> None:
        watch.refused_or_taken(lambda: paxtune.command_line.with_part(tunable, 'algorithm', text))

    names = [
        'RandomSearch',
        'RegularizedEvolution',
        'Grid',
        'random_search',
        'Algorithm',
        'eval',
    ]
    calls = st.builds('{}({})'.format, st.sampled_from(names), texts.values())
    watch.for_all(160, check, st.one_of(st.sampled_from(names), calls, texts.values()))


def test_scheduler() -> None:
    tunable = Kinds()

    def check(text: str) -> None:
        watch.refused_or_taken(lambda: paxtune.command_line.with_part(tunable, 'scheduler', text))

    names = ['Asha', 'ThresholdStopping', 'median_stopping', 'asha', 'none', 'Rungs', 'eval']
    calls = st.builds('{}({})'.format, st.sampled_from(names), texts.values())
    watch.for_all(160, check, st.one_of(st.sampled_from(names), calls, texts.values()))


BESIDE = pg.Dict(
    a=3, b=2.5, c='x', d=[1, 2, 'y'], e=pg.Dict(f=-1, g=None), h=10**30, i=True, j='9' * 9999
)
NAMES = ('a', 'b', 'c', 'd', 'd[0]', 'd[-1]', 'e', 'e.f', "e['g']", 'h', 'i', 'j', 'k', 'out')


def test_derived_values() -> None:
    def check(text: str) -> None:
        def read() -> Any:
            return resolve(BESIDE.clone(deep=True, override={'out': derived(text)}))

        watch.refused_or_taken(read, ValueError)

    watch.for_all(600, check, texts.expressions(NAMES) | texts.values(NAMES))


def test_expressions() -> None:
    values = {'a': 3, 'b': 2.5, 'c': 'x' * 5000, 'd': [1] * 5000, 'h': 10**300, 'x': 0}

    def look_up(path: tuple[str | int, ...]) -> Any:
        return values[str(path[0])]

    def check(text: str) -> None:
        watch.refused_or_taken(
            lambda: (Expression(text).evaluate(look_up),), ArithmeticError, LookupError, TypeError
        )

    watch.for_all(600, check, texts.expressions(tuple(values)))


@pytest.mark.parametrize('text', [*texts.HUGE, *texts.CODE])
def test_nothing_large_is_made_and_nothing_runs(text: str) -> None:
    watch.forget_peak()
    quoted = [f"derived('{text}')", f'derived({text!r})']
    for value in (text, *quoted, f'oneof([{text}])', f'[{text}]'):
        watch.refused_or_taken(functools.partial(literals.parse, value, 'x'))
        for flag in (overrides.override, overrides.tune):
            watch.refused_or_taken(functools.partial(flag, CLOSED, [f'layer={value}']))
    watch.refused_or_taken(
        lambda: resolve(BESIDE.clone(override={'out': derived(text)})), ValueError
    )


# --- Decisions ---


@st.composite
def given_decisions(draw: st.DrawFn, space: Space) -> list[str]:
    """Decisions as one writes them, legal ones with a change."""
    legal = space.readable(draw_decisions(space.spec, draw(st.randoms(use_true_random=False))))
    written = [f'{path}={value}' for path, value in legal.items()]
    at = draw(st.integers(0, len(written)))
    odd = st.one_of(
        texts.assignments(tuple((path, '') for path in space.paths)),
        texts.cut(st.sampled_from(written)),
        st.sampled_from(written),
    )
    return [
        *written[:at],
        *draw(st.lists(odd, max_size=1)),
        *written[at + draw(st.integers(0, 1)) :],
    ]


def test_decisions() -> None:
    space = Space(toy())

    def check(written: list[str]) -> None:
        def read() -> Any:
            return space.materialize(space.parse(decisions_given(written, '--decisions')))

        made = watch.refused_or_taken(read)
        assert made is None or isinstance(made, Toy)

    watch.for_all(200, check, given_decisions(space))


def test_added_trials() -> None:
    with open_study(None, toy()) as study:

        def check(written: list[str]) -> None:
            trial = watch.refused_or_taken(lambda: study.add(decisions_given(written, 'add')))
            if trial is not None:
                assert json.dumps(trial.decisions)
                study.delete_trial(trial.id)

        watch.for_all(120, check, given_decisions(study.space))


def test_flags() -> None:
    """All of a command's flags together, as `paxtune.search` reads them."""
    flags = paxtune.search.parser()
    registry.available(
        Tunable
    )  # The message for a wrong name lists all names, which imports their modules.
    kinds = '--exp=tests.factories.tunables.Kinds'
    fixed = st.sampled_from(['--smoke', '--initial_defaults', kinds])
    numbers = st.builds(
        '--{}={}'.format,
        st.sampled_from(['num_trials', 'seed', 'max_hours', 'max_device_hours', 'target_reward']),
        st.one_of(st.integers().map(str), st.floats().map(repr), st.sampled_from(texts.HUGE)),
    )
    assigned = texts.assignments(fields_of(EXPERIMENTS[-1])).map('--set={}'.format)
    names = st.sampled_from(
        ['lm', 'a.b', '.', '..', 'lm.', 'x' * 9999 + '.y', 'lm.__init__', 'é.\0', 'lm.Nothing']
    )

    def check(some: list[str], name: str | None) -> None:
        def read() -> Any:
            given = ['--exp=tests.factories.tunables.Kinds'] if name is None else [f'--exp={name}']
            try:
                return paxtune.command_line.tunable_for(flags.parse_args([*given, *some]))
            except (argparse.ArgumentError, SystemExit) as error:
                assert getattr(error, 'code', 2) == 2
                return None

        watch.refused_or_taken(read)

    some = st.lists(st.one_of(fixed, numbers, assigned), max_size=3)
    watch.for_all(80, check, some, st.none() | st.none() | names)
