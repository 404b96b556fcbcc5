"""Studies that a service has open."""

import threading

import pytest

from paxtune.service import schema
from paxtune.service.registry import StudyRegistry
from paxtune.storage.database import DatabaseUnavailableError


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
