"""Usual values: how components state them, and how they are found in an experiment."""

import math
from typing import Any

import pyglove as pg
import pytest

from paxtune.search_space.space import Space
from trainer.symbolic.component import Component
from trainer.symbolic.derived import derived
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue, choice, over, span, span_at, usual_values

SOURCE = 'Edison 1880'


class Bulb(Component):
    watts: float = 60.0
    hours: int = 1000
    glass: str = 'clear'

    usual = {
        'watts': UsualValue(60.0, 40.0, 75.0, SOURCE),
        'hours': UsualValue(999.6, 500, 2000, SOURCE),
        'glass': choice('frosted', SOURCE),
    }


class Halogen(Bulb):
    color: float = 3000.0

    usual = {
        'color': UsualValue(2900.0, 2700.0, 3100.0, SOURCE),
        'hours': UsualValue(2000, 1000, 3000, SOURCE),
        'glass': None,
    }


class Lamp(Component):
    bulb: Any
    size: int = 1

    def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
        rooms = over(span_at(experiment, 'rooms'), lambda n: UsualValue(n, n / 2, 2 * n, SOURCE))
        return super().usual_values(experiment) | ({} if rooms is None else {'size': rooms})


def test_usual_values_of_a_class_are_no_fields() -> None:
    assert list(map(str, Bulb.__schema__.fields)) == ['watts', 'hours', 'glass']
    assert '"usual"' not in Bulb().to_json_str()


def test_usual_values_of_subclass_add_to_those_of_its_base() -> None:
    found = Halogen().usual_values(None)
    assert {name: usual.value for name, usual in found.items()} == {
        'watts': 60.0,
        'hours': 2000,
        'color': 2900.0,
    }

    class Plain(Halogen):
        pass

    assert Plain().usual_values(None) == found


def test_usual_values_of_integer_fields_are_integers() -> None:
    assert usual_values(Bulb())['hours'] == UsualValue(1000, 500, 2000, SOURCE)


def test_usual_values_have_the_ids_of_decisions() -> None:
    def watts() -> Any:
        return pg.floatv(10.0, 100.0)

    value = pg.Dict(
        lamps=[Lamp(pg.oneof([None, Bulb(watts()), Halogen(watts())]))],
        two=pg.manyof(2, [Bulb(watts()), [Bulb(watts())], 3]),
        **{'odd name': Bulb(watts())},
    )
    found = usual_values(value)
    open_ids = [id_ for id_ in Space(value).ids if 'watts' in id_]
    assert len(open_ids) == 7
    assert all(found[id_].value == 60.0 for id_ in open_ids)
    assert found['lamps[0].bulb[=2/3].color'].value == 2900.0


def test_usual_values_of_shared_decision_are_those_of_its_field() -> None:
    bulb = Bulb(watts=derived('shared.watts'))
    space = Space(pg.Dict(shared={'watts': pg.floatv(10.0, 100.0)}, lamps=[bulb]))
    assert usual_values(space.value)['shared.watts'].value == 60.0


@pytest.mark.parametrize(
    ('rooms', 'expected'),
    [
        (8, (8, 4, 16)),
        (pg.oneof([4, 16]), (8, 2, 32)),
        (pg.floatv(4.0, 16.0), (8, 2, 32)),
        (pg.oneof(['a', 'b']), None),
        (None, None),
    ],
)
def test_usual_values_follow_the_experiment(rooms: Any, expected: Any) -> None:
    found = usual_values(pg.Dict(rooms=rooms, lamp=Lamp(None)))
    usual = found.get('lamp.size')
    assert (usual and (usual.value, usual.low, usual.high)) == expected


def test_usual_values_follow_a_shared_value() -> None:
    value = pg.Dict(shared={'n': pg.oneof([2, 8])}, rooms=derived('shared.n'), lamp=Lamp(None))
    assert usual_values(value)['lamp.size'].value == 4


def test_usual_value_of_unknown_field_names_the_nearest() -> None:
    class Misspelt(Bulb):
        usual = {'wats': UsualValue(60.0, 40.0, 75.0, SOURCE)}

    with pytest.raises(UserError, match=r'lamp\.wats: Misspelt states .* Did you mean watts\?'):
        usual_values(pg.Dict(lamp=Misspelt()))


def test_usual_value_must_be_one() -> None:
    class Plain(Bulb):
        usual = {'watts': 60.0}

    with pytest.raises(UserError, match=r'lamp\.watts: Plain must state a UsualValue: 60\.0'):
        usual_values(pg.Dict(lamp=Plain()))


def test_usual_values_that_fail_name_the_component() -> None:
    class Broken(Bulb):
        def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
            return {'watts': UsualValue(1.0, 2.0, 3.0, SOURCE)}

    with pytest.raises(UserError, match=r'lamp: Broken\.usual_values fails: .*from low to high'):
        usual_values(pg.Dict(lamp=Broken()))


@pytest.mark.parametrize(
    ('numbers', 'source', 'message'),
    [
        ((3.0, 1.0, 2.0), SOURCE, 'from low to high'),
        ((1.0, 1.0, math.inf), SOURCE, 'from low to high'),
        ((1.0, 1.0, 2.0), '', 'needs a source'),
    ],
)
def test_usual_value_is_checked(numbers: Any, source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UsualValue(numbers[0], numbers[1], numbers[2], source)


def test_usual_candidate_is_a_name_a_class_or_a_component() -> None:
    assert choice('relu', SOURCE).is_candidate('relu')
    assert not choice('relu', SOURCE).is_candidate('gelu')
    assert choice(Bulb, SOURCE).is_candidate(Bulb(3.0))
    assert not choice(Bulb, SOURCE).is_candidate(Halogen())
    assert choice(Bulb(3.0), SOURCE).is_candidate(Bulb(3.0))
    assert not choice(Bulb(3.0), SOURCE).is_candidate(Bulb(4.0))
    assert not choice(True, SOURCE).is_candidate(1)
    assert not choice(True, SOURCE).is_number


def test_span_of_values_and_decisions() -> None:
    assert span(3) == (3, 3)
    assert span(pg.oneof([4, 2, 3])) == (2, 4)
    assert span(pg.floatv(0.1, 0.5)) == (0.1, 0.5)
    assert span(True) is span('a') is span(pg.oneof([None, 1])) is None
