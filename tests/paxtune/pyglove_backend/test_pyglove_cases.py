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
def by_default(request, tmp_path):
    """Makes `pg.sample` use paxtune's backend."""
    opened = []

    @pg.tuning.add_backend('cases of PyGlove')
    class Backend(PaxtuneBackend):
        def __init__(self, name, **kwargs):
            opened.append(name)
            if request.param == 'on disk':
                kwargs['job_log_dir'] = tmp_path / (name or str(len(opened)))
            super().__init__(name, **kwargs)

    before = pg.tuning.default_backend()
    pg.tuning.set_default_backend('cases of PyGlove')
    yield
    pg.tuning.set_default_backend(before)
    assert opened


def test_there_are_cases():
    assert len(CASES) >= 12


@pytest.mark.parametrize('case', CASES)
@pytest.mark.fast(10)
def test_case_of_pyglove(by_default, case):
    SAMPLE_TEST.SamplingTest(case).debug()
