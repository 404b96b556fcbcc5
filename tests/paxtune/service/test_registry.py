"""Studies that a service has open."""

import threading

import pytest

from paxtune.service import schema
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.registry import StudyRegistry
from paxtune.service.server import Server
from paxtune.storage.database import DatabaseUnavailableError
from paxtune.storage.vizier_store import VizierStore
from tests.paxtune.service.conftest import client_of, spec


def test_no_more_studies_are_opened_than_fit():
    registry = StudyRegistry(lambda study: object(), max_studies=2)
    first = registry('a')
    registry('b')
    with pytest.raises(schema.RequestRejectedError, match='2 studies'):
        registry('c')
    assert registry('a') is first
    assert set(registry.opened()) == {'a', 'b'}


def test_a_study_that_is_opened_keeps_no_other_waiting():
    opening, release = threading.Event(), threading.Event()

    def make(study):
        if study == 'large':
            opening.set()
            release.wait(10)
        return study

    registry, got = StudyRegistry(make), []
    threads = [threading.Thread(target=lambda: got.append(registry('large'))) for _ in range(2)]
    for thread in threads:
        thread.start()
    opening.wait(10)
    assert registry('small') == 'small'
    release.set()
    for thread in threads:
        thread.join()
    assert got == ['large'] * 2


def test_a_study_that_could_not_be_opened_is_opened_again():
    tries = []

    def make(study):
        tries.append(study)
        if len(tries) == 1:
            raise DatabaseUnavailableError
        return study

    registry = StudyRegistry(make)
    with pytest.raises(DatabaseUnavailableError):
        registry('a')
    assert registry('a') == 'a'


def test_invented_names_take_no_memory():
    registry = StudyRegistry(lambda study: object(), max_studies=2, exists={'real'}.__contains__)
    assert len({id(registry(f'invented-{i}')) for i in range(1000)}) > 0
    assert registry('real') is registry('real')
    assert set(registry.opened()) == {'real'} == set(registry._locks)


def test_the_service_answers_beside_invented_names(database):
    registry = StudyRegistry(
        lambda study: StudyCoordinator(VizierStore(database, study)),
        exists=lambda study: VizierStore(database, study).study_spec() is not None,
    )
    with Server(registry) as server, client_of(server, token=None) as client:
        client.call(schema.CreateStudyRequest(spec=spec()))
        for number in range(20):
            with client_of(server, f'invented-{number}', None) as other:
                other.call(schema.StudyRequest(known=''))
                with pytest.raises(schema.RequestRejectedError, match='no such study'):
                    other.call(schema.ChangesRequest(generation='', since=0))
        client.call(schema.ChangesRequest(generation='', since=0))
    assert set(registry.opened()) == {'mine'}
