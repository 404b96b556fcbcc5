"""Hostile requests to a service: `python -m tests.fuzz` sends more."""

import contextlib

import pytest

from paxtune.service.schema import Role
from tests.fuzz.service import FuzzedService


@pytest.mark.parametrize('role', Role)
def test_every_reader_works_after_hostile_requests(role: Role) -> None:
    with contextlib.closing(FuzzedService(role, seed=0)) as service:
        service.attack(150, between=75)
    assert service.counts.keys() >= {'OK', 'INVALID_ARGUMENT'}


@pytest.mark.slow(reason='ten thousand requests of each role, and every reader after each 500')
@pytest.mark.parametrize('role', Role)
def test_every_reader_works_after_ten_thousand_hostile_requests(role: Role) -> None:
    with contextlib.closing(FuzzedService(role, seed=1)) as service:
        service.attack(10_000, between=500)
