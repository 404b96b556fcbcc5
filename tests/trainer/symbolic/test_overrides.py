"""Overrides by path."""

from typing import Any, Literal

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.symbolic import overrides
from trainer.symbolic.component import Component, Number
from trainer.symbolic.errors import UserError


class Descent(Component):
    weight_decay: Number = 0.0


class Plain(Descent):
    momentum: Number = 0.9


class Accelerated(Descent):
    b1: Number = 0.9


class Attend(Component):
    dims: int = 8
    heads: int = 2
    kind: Literal['full', 'local'] = 'full'
    window: int | None = None

    def check(self) -> None:
        if self.dims % self.heads:
            raise ValueError(f'dims ({self.dims}) must be a multiple of heads ({self.heads})')


class Files(Component):
    data_dir: str = '/data'
    shuffle: bool = True


class Study(Component):
    layers: list[Attend] = [Attend(), Attend()]
    optimizer: Descent = Plain()
    other: Descent | None = None
    learning_rate: Number = 0.1
    widths: list[int] = [8, 16]
    rates: dict[str, float] = {'b1': 0.9}
    eval_inputs: dict[str, Files] = {'c4': Files()}
    anything: dict[str, Any] = {'x': 1}
    smoke: dict[str, Any] = {}


def study(**fields: Any) -> Study:
    return Study(**fields).clone(deep=True)


@pytest.mark.parametrize(
    ('assignment', 'path', 'value'),
    [
        ('learning_rate=1e-3', 'learning_rate', 1e-3),
        ('learning_rate=1', 'learning_rate', 1.0),
        (' learning_rate = 1', 'learning_rate', 1.0),
        ('layers[1].dims=4', 'layers[1].dims', 4),
        ('layers[0].kind=local', 'layers[0].kind', 'local'),
        ('layers[0].window=3', 'layers[0].window', 3),
        ('layers[0].window=null', 'layers[0].window', None),
        ('layers[0]=Attend(heads=4)', 'layers[0]', Attend(heads=4)),
        ('layers=[Attend(4), Attend(2)]', 'layers', [Attend(4), Attend(2)]),
        ('optimizer=Plain(0, 0.5)', 'optimizer', Plain(0.0, 0.5)),
        ('optimizer=Accelerated()', 'optimizer', Accelerated()),
        ('optimizer.momentum=0', 'optimizer.momentum', 0.0),
        ('other=Accelerated(b1=1)', 'other', Accelerated(b1=1.0)),
        ('widths=[1, 2, 3]', 'widths', [1, 2, 3]),
        ('widths[1]=3', 'widths[1]', 3),
        ('rates={b1: 1, b2: 2}', 'rates', {'b1': 1.0, 'b2': 2.0}),
        ('rates.b1=1', 'rates.b1', 1.0),
        ('eval_inputs.c4.data_dir=gs://x/y', 'eval_inputs.c4.data_dir', 'gs://x/y'),
        ('eval_inputs.c4.data_dir=a=b', 'eval_inputs.c4.data_dir', 'a=b'),
        ('eval_inputs.c4.shuffle=false', 'eval_inputs.c4.shuffle', False),
        ('eval_inputs={}', 'eval_inputs', {}),
        ('anything.x=true', 'anything.x', True),
    ],
)
def test_set(assignment: str, path: str, value: Any) -> None:
    before = study()
    after = overrides.override(before, [assignment])
    found = pg.KeyPath.parse(path).query(after)
    assert pg.eq(found, value) and type(found) is type(pg.from_json(pg.to_json(value)))
    assert pg.eq(before, study())


@pytest.mark.pax('--fdl', 'Configuration by class')
@pytest.mark.parametrize(
    ('assignment', 'message'),
    [
        (
            'lerning_rate=1',
            r"lerning_rate: Study has no 'lerning_rate'. Did you mean learning_rate\?",
        ),
        (
            'optimizer.momentun=1',
            'Did you mean optimizer.momentum.* It has: weight_decay, momentum',
        ),
        ('optimiser.momentum=1', 'Did you mean optimizer'),
        ('layers[2].dims=1', r'layers\[2\]\.dims: layers is a list of 2 items'),
        ('layers[2]=Attend()', 'layers is a list of 2 items'),
        ('layers.dims=1', 'layers is a list of 2 items'),
        ('layers[-1].dims=1', 'not a path'),
        ('layers[0]dims=1', 'not a path'),
        (f'layers[{"9" * 5000}].dims=1', 'not a path'),
        (f'learning_rate={"9" * 400}', 'learning_rate: expected a number, got 999'),
        ('eval_inputs.c5.data_dir=x', r'eval_inputs has no .c5.\. Did you mean eval_inputs\.c4'),
        ('eval_inputs.c5=Files()', 'eval_inputs has no .c5.'),
        ('rates.b2=1', 'rates has no .b2.'),
        ('learning_rate.x=1', 'learning_rate.x: 0.1 has no x inside'),
        ('other.b1=1', 'other.b1: null has no b1 inside'),
        ('learning_rate', 'expected path=value'),
        ('=1', 'not a path'),
        ('sym_path=1', "Study has no 'sym_path'"),
        ('learning_rate=true', 'learning_rate: expected a number, got true'),
        ('learning_rate=fast', "expected a number, got 'fast'"),
        ('learning_rate=null', 'expected a number, got null'),
        ('layers[0].dims=true', r'layers\[0\]\.dims: expected an integer, got true'),
        ('layers[0].dims=4.0', 'expected an integer, got 4.0'),
        ('layers[0].window=true', 'expected an integer or null, got true'),
        ('layers[0].kind=globl', "expected 'full' or 'local', got 'globl'"),
        ('widths=[1, true]', r'widths\[1\]: expected an integer, got true'),
        ('widths=3', 'expected a list, each item an integer, got 3'),
        ('rates={b1: true}', r'rates\.b1: expected a number, got true'),
        ('rates=3', 'expected a mapping, got 3'),
        ('eval_inputs.c4.shuffle=1', 'expected true or false, got 1'),
        ('eval_inputs.c4.data_dir=3', 'expected a string, got 3'),
        (
            'optimizer=Attend()',
            r'optimizer: expected Descent or Plain or Accelerated, got Attend\(…\)',
        ),
        ('optimizer=Accelrated()', 'Did you mean Accelerated'),
        ('optimizer=Plain(momentum=true)', r'Plain\.momentum: expected a number, got true'),
        ('layers[0].dims=7', r'^layers\[0\]: dims \(7\) must be a multiple of heads \(2\)'),
        ('layers[0].heads=0', r'^layers\[0\]: .*zero'),
        ('learning_rate=oneof([1, 2])', 'is a decision: use --tune'),
        ('optimizer=Plain(oneof([1, 2]))', 'is a decision: use --tune'),
    ],
)
def test_set_refuses(assignment: str, message: str) -> None:
    before = study()
    with pytest.raises(UserError, match=message):
        overrides.override(before, [assignment])
    assert pg.eq(before, study())


def test_message_begins_with_the_flag_and_the_path() -> None:
    with pytest.raises(UserError, match=r'^--set optimizer\.momentum: '):
        overrides.override(study(), ['optimizer.momentum=x'])
    with pytest.raises(UserError, match=r'^--tune optimizer\.momentum: '):
        overrides.tune(study(), ['optimizer.momentum=Plain(1)'])


def test_values_that_fit_only_together() -> None:
    after = overrides.override(study(), ['layers[0].heads=3', 'layers[0].dims=9'])
    assert (after.layers[0].heads, after.layers[0].dims) == (3, 9)


def test_later_assignments_see_the_earlier_ones() -> None:
    after = overrides.override(study(), ['optimizer=Accelerated()', 'optimizer.b1=0.5'])
    assert pg.eq(after.optimizer, Accelerated(b1=0.5))


def test_the_result_checks_types_as_any_other() -> None:
    after = overrides.override(study(), ['layers[0].dims=4'])
    with pytest.raises(TypeError):
        after.rebind({'layers[0].dims': 'x'})
    with pytest.raises(ValueError, match='multiple'):
        after.rebind({'layers[0].dims': 5})


@pytest.mark.parametrize(
    ('assignment', 'path', 'decision'),
    [
        ('learning_rate=floatv(1e-4, 1, log)', 'learning_rate', pg.floatv(1e-4, 1.0, 'log')),
        ('layers[0].dims=oneof([4, 8])', 'layers[0].dims', pg.oneof([4, 8])),
        ('widths=manyof(2, [1, 2, 3])', 'widths', pg.manyof(2, [1, 2, 3])),
        (
            'optimizer=oneof([Plain(floatv(0.1, 0.2)), Accelerated()])',
            'optimizer',
            pg.oneof([Plain(pg.floatv(0.1, 0.2)), Accelerated()]),
        ),
    ],
)
def test_tune(assignment: str, path: str, decision: Any) -> None:
    after = overrides.tune(study(), [assignment])
    found = after.sym_get(path)
    assert pg.eq(found, decision)
    assert len(pg.dna_spec(after).decision_points) == len(pg.dna_spec(decision).decision_points)


@pytest.mark.parametrize(
    ('assignment', 'message'),
    [
        ('learning_rate=1', 'is not a decision'),
        ('learning_rate=oneof([1, true])', 'candidate 2: expected a number, got true'),
        ('layers[0].dims=oneof([4, 8.5])', 'candidate 2: expected an integer, got 8.5'),
        ('layers[0].dims=floatv(1, 2)', 'expected an integer'),
        ('optimizer=oneof([Plain(), Attend()])', r'candidate 2: expected .*got Attend'),
        ('widths=manyof(2, [1, true])', 'candidate 2: expected an integer, got true'),
        ('widths=oneof([[1], [true]])', 'candidate 2'),
        ('learning_rat=oneof([1])', 'Did you mean learning_rate'),
    ],
)
def test_tune_refuses(assignment: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        overrides.tune(study(), [assignment])


def test_set_on_a_decision_fixes_it() -> None:
    template = study(
        learning_rate=pg.floatv(1e-4, 1.0, 'log'),
        layers=[pg.oneof([Attend(4), Attend(8)])],
        widths=pg.manyof(2, [1, 2, 3]),
    )
    fixed = overrides.override(
        template, ['learning_rate=2', 'layers[0]=Attend(6)', 'widths=[3, 2]']
    )
    assert pg.is_deterministic(fixed)
    assert fixed.learning_rate == 2.0 and fixed.layers[0].dims == 6
    with pytest.raises(UserError, match=r'^layers\[0\]: dims'):
        overrides.override(template, ['layers[0]=Attend(6)', 'layers[0].dims=3'])


@pytest.mark.parametrize(
    'assignment', ['layers[0].dims=4', 'learning_rate.min_value=1', 'widths[0]=1']
)
def test_insides_of_a_decision_cannot_be_set(assignment: str) -> None:
    template = study(
        learning_rate=pg.floatv(1e-4, 1.0, 'log'),
        layers=[pg.oneof([Attend(4), Attend(8)])],
        widths=pg.manyof(2, [1, 2, 3]),
    )
    with pytest.raises(UserError, match='is a decision, whose fields cannot be set'):
        overrides.override(template, [assignment])


def test_checks_wait_for_decisions() -> None:
    template = overrides.tune(study(), ['layers[0].heads=oneof([2, 3])'])
    template = overrides.override(template, ['layers[0].dims=9'])
    assert pg.materialize(template, pg.DNA([1])).layers[0].heads == 3


def test_smoke() -> None:
    tiny = {'layers': [Attend(4)], 'learning_rate': 1, 'optimizer.momentum': 0.5}
    before = study(smoke=tiny)
    after = overrides.smoke(before)
    assert pg.eq(
        after,
        study(smoke=tiny, layers=[Attend(4)], learning_rate=1.0, optimizer=Plain(momentum=0.5)),
    )
    assert pg.eq(before, study(smoke=tiny))


@pytest.mark.parametrize(
    ('smoke', 'message'),
    [
        ({}, 'defines no tiny size'),
        ({'layer': []}, "--smoke: layer: Study has no 'layer'"),
        ({'layers[0].dims': True}, r'--smoke: layers\[0\]\.dims: expected an integer'),
        ({'layers[0].dims': 3}, r'layers\[0\]: dims'),
    ],
)
def test_smoke_refuses(smoke: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        overrides.smoke(study(smoke=smoke))


@given(st.text(), st.text())
def test_any_assignment_is_made_or_clearly_refused(path: str, value: str) -> None:
    try:
        overrides.override(study(), [f'{path}={value}'])
    except UserError as error:
        assert str(error).startswith('--set')


@given(st.integers(1, 2**40), st.floats(0, allow_nan=False, allow_infinity=False))
def test_numbers_arrive_to_the_last_bit(width: int, rate: float) -> None:
    after = overrides.override(study(), [f'widths[0]={width}', f'learning_rate={rate!r}'])
    assert (after.widths[0], after.learning_rate) == (width, rate)
