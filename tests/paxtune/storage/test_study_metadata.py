"""Studies whose notes somebody has changed."""

from pathlib import Path

import pytest

from paxtune.storage.study_metadata import StudyRecord
from paxtune.storage.vizier_store import StudySpec, write_notes
from paxtune.study.study import Study
from tests.paxtune.toys import toy
from trainer.symbolic.errors import UserError

_OPAQUE = '{"_type": "pyglove.core.utils.json_conversion._OpaqueObject", "value": ""}'


@pytest.mark.parametrize(
    ('name', 'text'),
    [
        ('format', '1'),
        ('data', ''),
        ('data', '[]'),
        ('data', '{"text": 1}'),
        ('priors', '9' * 5000),
        ('priors', '[' * 100_000),
        ('priors', '{}'),
        ('priors', '[1]'),
        ('priors', '[{"decisions": {}}]'),
        ('priors', '[{"decisions": 0.5, "scores": [1.0]}]'),
        ('priors', '[{"decisions": {"x": "y"}, "scores": [1.0]}]'),
        ('priors', '[{"decisions": {"x": 1}, "scores": [true]}]'),
        ('exhausted', 'never'),
        ('stop', '{'),
        ('stop', '["x"]'),
        ('value', ''),
        ('value', '3'),
        ('value', '{"_type": "tests.paxtune.toys.Dense"}'),
        ('value', '{"_type": "function", "name": "os.system"}'),
        ('value', _OPAQUE),
        ('search', _OPAQUE),
        ('search', '{"_type": "tests.paxtune.toys.Dense"}'),
    ],
)
def test_a_study_that_says_what_paxtune_never_writes_is_refused(
    name: str, text: str, tmp_path: Path
) -> None:
    with Study.open(tmp_path, toy()) as study:
        study.store.write_study_notes({name: text})
    with pytest.raises(UserError, match=str(tmp_path)):
        Study.load(tmp_path)


def test_a_study_that_does_not_say_all_is_refused() -> None:
    spec = StudySpec()
    write_notes(spec, {'format': '2', 'data': '{}', 'priors': '[]'})
    with pytest.raises(UserError, match=r"a study: .* cannot be read: KeyError\('value'\)"):
        StudyRecord.read(spec, Path('a study'))
