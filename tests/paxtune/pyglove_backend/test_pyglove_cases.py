"""PyGlove's own cases of `pg.sample`, on a paxtune study."""

import importlib.util
import unittest
from pathlib import Path

import pyglove as pg
import pytest

from paxtune.pyglove_backend import PaxtuneBackend

pytestmark = pytest.mark.usefixtures('alone')


def load_sample_test():
    path = Path(pg.__file__).parent / 'core' / 'tuning' / 'sample_test.py'
    spec = importlib.util.spec_from_file_location('pyglove_sample_test', path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SAMPLE_TEST = load_sample_test()
CASES = unittest.TestLoader().getTestCaseNames(SAMPLE_TEST.SamplingTest)


@pytest.fixture(params=['in memory', 'on disk'])
def by_default(request, monkeypatch, tmp_path):
    """Makes `pg.sample` use paxtune's backend, and no other."""
    before = pg.tuning.default_backend()
    pg.tuning.set_default_backend('paxtune')
    in_memory = pg.tuning.backend.get_backend_cls('in-memory')
    monkeypatch.setattr(in_memory, '__init__', lambda *_, **__: pytest.fail('another backend'))
    if request.param == 'on disk':
        init, places = PaxtuneBackend.__init__, iter(range(99))

        def init_on_disk(self, name, **kwargs):
            init(self, name, **kwargs, job_log_dir=tmp_path / (name or str(next(places))))

        monkeypatch.setattr(PaxtuneBackend, '__init__', init_on_disk)
    yield
    pg.tuning.set_default_backend(before)


def test_there_are_cases():
    assert len(CASES) >= 12


@pytest.mark.parametrize('case', CASES)
@pytest.mark.fast(10)
def test_case_of_pyglove(by_default, case):
    SAMPLE_TEST.SamplingTest(case).debug()
