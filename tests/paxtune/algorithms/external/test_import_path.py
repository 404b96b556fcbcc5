"""Import paths in a study run no code."""

import dataclasses
import sys
from pathlib import Path

import pyglove as pg
import pytest

import paxtune
from paxtune import Budget, command_line, search
from paxtune.algorithms import DnaGenerator, SuggestionContext
from paxtune.algorithms.external import import_path
from paxtune.config.search import Search
from paxtune.running.supervisor import modules_of
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study, open_study
from tests.paxtune.algorithms.external.test_pyglove import Halving
from trainer.symbolic.errors import UserError

_ALARM = 'raise AssertionError("imported")\n'

_GENERATOR = """
import pyglove as pg

class Lowest(pg.DNAGenerator):
    def _propose(self):
        return self.dna_spec.first_dna()

def lowest() -> Lowest:
    return Lowest()
"""


@pytest.fixture
def alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that must not be imported."""
    (tmp_path / 'alarming.py').write_text(_ALARM)
    monkeypatch.syspath_prepend(tmp_path)
    return 'alarming'


@pytest.mark.parametrize('path', ['alarming.Mine', 'os.system', 'alarming.inner.Mine'])
def test_showing_a_study_imports_nothing(tmp_path, alarm, path):
    value = pg.Dict(x=pg.floatv(0.0, 1.0))
    folder = tmp_path / 'study'
    plain = Search(paxtune.MetricReward('maximize', 'reward'), budget=Budget(2))
    named = plain.clone(override={'algorithm': DnaGenerator(path, {'command': 'touch x'})})
    before = set(sys.modules)
    with pytest.raises(UserError, match=r'is no DNAGenerator|not imported'):
        open_study(folder, value, search=named)
    open_study(folder, value, search=plain).close()
    _put(folder, 'paxtune.Default', path)
    with load_study(folder, read_only=False) as study:
        assert study.search.algorithm.generator == path
        with pytest.raises(UserError, match=r'is no DNAGenerator|not imported'):
            study.search.algorithm.suggest(SuggestionContext(Space(value).spec, 0, 1, list))
    assert not {name for name in set(sys.modules) - before if name.startswith(alarm)}


def _put(folder: Path, old: str, path: str) -> None:
    """Replaces the algorithm of a stored study, as an attacker could."""
    with load_study(folder, read_only=False) as study:
        (name,) = (name for name in ('value', 'search') if old in getattr(study.record, name))
        text = getattr(study.record, name)
        new = text.replace(
            f'"{old}"',
            f'"paxtune.DnaGenerator", "generator": "{path}", "kwargs": {{"command": "touch x"}}',
        )
        assert new != text
        study.store.update_study(lambda record: dataclasses.replace(record, **{name: new}))


def test_a_module_named_in_a_flag_is_imported(tmp_path, monkeypatch):
    (tmp_path / 'named_here.py').write_text(_GENERATOR)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match='its module is not imported'):
        import_path.resolve('named_here.Lowest', pg.DNAGenerator, 'generator')
    args = search.parser().parse_args(
        ['--exp=tunable_lm.Tiny', '--algorithm=DnaGenerator("named_here.lowest")']
    )
    tunable = command_line.tunable_for(args)
    made = import_path.resolve(tunable.search.algorithm.generator, pg.DNAGenerator, 'generator')()
    assert type(made).__name__ == 'Lowest'
    assert 'named_here' in modules_of(tunable)


@pytest.mark.parametrize('path', ['nothing_of_the_kind.X', 'X', 'a..b', 'os.__builtins__.X'])
def test_an_invalid_path_in_a_flag_is_reported(path):
    import_path.import_named(path)
    with pytest.raises(UserError):
        import_path.resolve(path, pg.DNAGenerator, 'generator')


def test_methods_are_rejected():
    assert import_path.resolve(f'{__name__}.Halving', pg.DNAGenerator, 'generator') is Halving
    for method in ('from_json', 'from_json_str', 'load', 'partial', '_propose', 'start.x'):
        with pytest.raises(UserError, match='does not exist'):
            import_path.resolve(f'{__name__}.Halving.{method}', pg.DNAGenerator, 'generator')


def test_json_of_an_object_is_not_plain_data():
    with pytest.raises(ValueError, match=r'kwargs.a: expected numbers'):
        import_path.to_plain({'a': {'_type': 'os.system'}}, 'kwargs')
