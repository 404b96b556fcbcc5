"""The translation of records to and from Vizier's protocol buffers."""

import datetime
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.objectives.measurement import Measurement
from paxtune.storage.codec import (
    StudySpec,
    TrialProto,
    decode_study,
    decode_trial,
    encode_study,
    encode_trial,
    parse_trial,
)
from paxtune.storage.stored_measurements import StoredMeasurements
from paxtune.study.record import (
    MAX_SECONDS,
    Event,
    Failures,
    Lineage,
    PriorTrial,
    Provenance,
    RunTime,
    Status,
    StudyRecord,
    TrialRecord,
)
from paxtune.study.record_checks import DamagedRecordError
from tests.properties import examples
from trainer.symbolic.errors import UserError

_texts = st.text(st.characters(codec='utf-8'), max_size=8)
_names = st.text(st.characters(codec='ascii', categories=['L']), min_size=1, max_size=5)
_numbers = st.floats(allow_nan=False, allow_infinity=False)
_ids = st.integers(1, 2**31 - 1)
_steps = st.integers(0, 2**40)
_times = st.datetimes(
    datetime.datetime(2000, 1, 1), datetime.datetime(2100, 1, 1), timezones=st.just(datetime.UTC)
)
_metrics = st.dictionaries(_names, _numbers, max_size=3)


@st.composite
def records(draw: st.DrawFn) -> TrialRecord:
    """Any trial that a study may hold."""
    status = draw(st.sampled_from(list(Status)))
    measurements = [
        Measurement(step, draw(_metrics), tuple(draw(st.lists(_numbers, max_size=2))), path)
        for step, path in draw(
            st.dictionaries(_steps, st.none() | _names, max_size=3).map(dict.items)
        )
    ]
    has_final = status in (Status.COMPLETED, Status.STOPPED)
    optional = st.none() | _ids
    return TrialRecord(
        parameters=draw(st.dictionaries(_names, _names | _numbers, max_size=3)),
        id=draw(_ids),
        status=status,
        created=draw(_times),
        ended=draw(_times) if status.has_ended else None,
        measurements=tuple(measurements),
        final=Measurement(draw(_steps), draw(_metrics), (draw(_numbers),)) if has_final else None,
        reason=draw(_texts) if status is Status.INFEASIBLE else draw(st.none() | _texts),
        is_failed=draw(st.booleans()),
        lineage=Lineage(
            origin=draw(_texts),
            parent=draw(optional),
            replicate=draw(_ids),
            replicate_of=draw(optional),
            forked_from=draw(st.none() | st.tuples(_ids, _steps)),
        ),
        holder=draw(_texts),
        attempt=draw(st.integers(1, 10**5)),
        failures=Failures(draw(_steps), draw(_steps), draw(_steps)),
        pauses=tuple(draw(st.lists(_steps, max_size=3))),
        history=tuple(
            draw(st.lists(st.builds(Event, _times, _texts, _ids, _texts, _texts), max_size=3))
        ),
        non_finite=draw(st.dictionaries(_names, _steps, max_size=2)),
        costs=draw(st.dictionaries(_names, _metrics, max_size=2)),
        run_time=RunTime(min(abs(draw(_numbers)), MAX_SECONDS), draw(st.integers(0, 100))),
        memo=draw(st.dictionaries(_texts, _texts, max_size=2)),
        metadata=draw(st.dictionaries(_texts, _texts, max_size=2)),
        attributes=draw(
            st.dictionaries(
                _names.filter(bool),
                st.booleans() | st.integers(-(2**63), 2**63 - 1) | _numbers | _texts,
                max_size=2,
            )
        ),
    )


@given(record=records())
@examples(60)
def test_a_trial_comes_back_as_it_was(record: TrialRecord) -> None:
    content = encode_trial(record).SerializeToString()
    assert parse_trial(content) == record
    assert encode_trial(parse_trial(content)).SerializeToString() == content


def test_a_trial_of_another_program_has_defaults() -> None:
    proto = TrialProto(id='7', state=TrialProto.State.ACTIVE)
    assert decode_trial(proto) == TrialRecord({}, id=7, status=Status.ACTIVE)


def test_the_state_of_another_program_counts() -> None:
    proto = encode_trial(TrialRecord({}, id=1, status=Status.PAUSED, pauses=(3,)))
    assert decode_trial(proto).status is Status.PAUSED
    proto.state = TrialProto.State.INFEASIBLE
    assert decode_trial(proto).status is Status.INFEASIBLE


def test_the_metadata_of_other_programs_is_kept() -> None:
    stored = encode_trial(TrialRecord({}, id=1))
    stored.metadata.add(ns='other', key='record', value='theirs')
    changed = encode_trial(TrialRecord({}, id=1, run_time=RunTime(2.0)), stored)
    assert [(each.ns, each.value) for each in changed.metadata if each.ns == 'other'] == [
        ('other', 'theirs')
    ]
    assert decode_trial(changed).run_time.seconds == 2.0


@pytest.mark.parametrize(
    'text', ['', '[]', '{', '[' * 100_000, '{"attempt": "x"}', '{"unknown": 1}', '{"history": [1]}']
)
def test_a_damaged_trial_is_refused_by_number(text: str) -> None:
    proto = encode_trial(TrialRecord({}, id=3, run_time=RunTime(1.0)))
    (item,) = proto.metadata
    item.value = text
    with pytest.raises(DamagedRecordError, match='trial 3 is damaged'):
        decode_trial(proto)


STUDY = StudyRecord(
    '{}',
    '',
    '{}',
    {'text': 'abc'},
    (PriorTrial({'x': 1, 'y': 0.5}, (1.0,)),),
    'A',
    ('minimize',),
    stop_requests=(1,),
    provenance=Provenance(('paxtune.search', '--exp=a b'), {'jax': '1'}, 'abc-dirty'),
)


def test_a_study_comes_back_as_it_was() -> None:
    spec = encode_study(STUDY)
    assert decode_study(spec) == STUDY
    assert (spec.algorithm, len(spec.metrics)) == ('A', 1)


@pytest.mark.parametrize(
    'changed',
    [
        {'priors': [{'decisions': {}}]},
        {'priors': [{'decisions': 0.5, 'scores': [1.0]}]},
        {'priors': [{'decisions': {'x': 'y'}, 'scores': [1.0]}]},
        {'priors': [{'decisions': {'x': 1}, 'scores': [True]}]},
        {'data': {'text': 1}},
        {'exhausted': 'never'},
        {'stop_requests': ['x']},
        {'value': None},
        {'provenance': {'command': 'rm'}},
        {'provenance': {'versions': {'jax': 1}}},
    ],
)
def test_a_damaged_study_is_refused(changed: Any) -> None:

    spec = encode_study(STUDY)
    item = next(each for each in spec.metadata if each.key == 'record')
    item.value = json.dumps({**json.loads(item.value), **changed})
    with pytest.raises(UserError, match='here: the record of the study is damaged'):
        decode_study(spec, 'here')


def test_a_study_of_another_version_is_refused() -> None:
    spec = StudySpec()
    spec.metadata.add(ns=':paxtune', key='format', value='3')
    with pytest.raises(
        UserError, match='another version of paxtune made the study: it has format 3'
    ):
        decode_study(spec)


def test_a_study_of_a_vizier_client_has_no_record() -> None:
    with pytest.raises(UserError, match='a Vizier client created the study'):
        decode_study(StudySpec())


def test_negative_zero_keeps_its_sign() -> None:
    made = encode_trial(TrialRecord(parameters={'x': -0.0}, id=1))
    found = parse_trial(made.SerializeToString()).parameters['x']
    assert math.copysign(1.0, float(found)) == -1.0


def test_the_known_measurements_of_a_trial_are_those_that_have_not_changed() -> None:
    steps = [Measurement(step, {'loss': 1.0}, (), f'checkpoints/{step}') for step in (1, 2, 3)]
    earlier = decode_trial(encode_trial(TrialRecord({}, measurements=tuple(steps[:2]))))
    proto = encode_trial(TrialRecord({}, measurements=tuple(steps)))
    whole = decode_trial(proto, earlier.measurements)
    assert isinstance(whole.measurements, StoredMeasurements)
    assert whole.measurements.num_known == 2
    assert list(whole.measurements[2:]) == steps[2:] and list(whole.measurements) == steps
    proto.measurements[0].metrics[0].value = 2.0
    again = encode_trial(TrialRecord({}, measurements=(steps[0], Measurement(2, {'loss': 1.0}))))
    for changed in (proto, again, encode_trial(TrialRecord({}))):
        found = decode_trial(changed, earlier.measurements).measurements
        assert isinstance(found, StoredMeasurements) and found.num_known == 0
    proto.measurements[1].metrics[0].value = math.nan
    with pytest.raises(DamagedRecordError, match='a metric of step 2 is not finite'):
        decode_trial(proto, earlier.measurements)
