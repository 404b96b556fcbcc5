"""Studies for tests."""

import weakref

import pytest

from paxtune import pyglove_backend
from paxtune.study import Study
from tests.paxtune.toys import toy


@pytest.fixture
def study(tmp_path):
    with Study.open(tmp_path, toy()) as study:
        yield study


@pytest.fixture
def alone(monkeypatch):
    """Each test has its own loops."""
    monkeypatch.setattr(pyglove_backend, '_by_name', {})
    monkeypatch.setattr(pyglove_backend, '_by_directory', weakref.WeakValueDictionary())
