"""Studies whose stored record another program has changed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from paxtune.storage.open_study import load_study, open_study
from tests.factories.toys import toy
from trainer.symbolic.errors import UserError

_OPAQUE = '{"_type": "pyglove.core.utils.json_conversion._OpaqueObject", "value": ""}'


@pytest.mark.parametrize(
    ('name', 'text'),
    [
        ('value', ''),
        ('value', '3'),
        ('value', '{"_type": "tests.factories.toys.Dense"}'),
        ('value', '{"_type": "function", "name": "os.system"}'),
        ('value', _OPAQUE),
        ('search', _OPAQUE),
        ('search', '{"_type": "tests.factories.toys.Dense"}'),
    ],
)
def test_a_definition_that_paxtune_never_writes_is_refused(
    name: str, text: str, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {name: text}
    with open_study(tmp_path, toy()) as study:
        study.store.update_study(lambda record: dataclasses.replace(record, **changes))
    with pytest.raises(UserError, match=str(tmp_path)):
        load_study(tmp_path)
