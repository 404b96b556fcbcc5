"""`python -m paxtune.studies portfolio`: decisions that did well, for other searches."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from paxtune.search_space.space import Space
from paxtune.study import initial_trials
from tests.factories.toys import toy
from trainer.symbolic.errors import UserError


def test_a_portfolio_of_all_studies_below_is_written_for_initial_trials(
    some_studies: Path, tmp_path: Path, shown: Callable[..., str]
) -> None:
    out = tmp_path / 'known.json'
    shown('portfolio', some_studies / 'deep', some_studies / 'front', '--count=3', f'--out={out}')
    written = json.loads(out.read_text())
    assert [Path(each).name for each in written['studies']] == ['done']
    first, *_ = initial_trials.read(str(out), Space(toy()))
    assert first == written['portfolio'][0]
    assert len(written['portfolio']) <= 3


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['nowhere'], 'there is no such directory'),
        (['.'], 'There are no studies to learn from'),
        (['.', '--count=0'], '--count=0: expected at least 1'),
    ],
)
def test_a_portfolio_of_nothing_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shown: Callable[..., str],
    flags: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        shown('portfolio', *flags)
