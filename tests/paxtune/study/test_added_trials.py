"""Trials that are added or retried by hand."""

from pathlib import Path

import pytest

from paxtune.storage.open_study import open_study
from tests.factories.studies import ask, finish
from tests.factories.toys import toy
from trainer.symbolic.errors import UserError


def test_added_trials_run_before_new_ones_and_do_not_change_them(tmp_path: Path) -> None:
    with open_study(tmp_path / 'a', toy()) as study:
        added = study.add({'rate': 0.05})
        assert (added.view.state, added.lineage.origin) == ('REQUESTED', 'added')
        trial = ask(study)
        assert (trial.id, trial.view.state, trial.decisions) == (1, 'ACTIVE', added.decisions)
        with pytest.raises(UserError, match='rate must be'):
            study.add({'rate': 'fast'})


def test_a_retry_is_a_new_trial_that_names_the_old_one(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as study:
        first = ask(study)
        with pytest.raises(UserError, match='only one that has ended'):
            study.retry(1)
        first.fail('no memory')
        retry = study.retry(1)
        assert (retry.id, retry.lineage.retry_of, retry.decisions) == (2, 1, first.decisions)
        again = ask(study)
        assert again.id == 2
        finish(again)
        assert study.trials[1].lineage.retry_of == 1
        with pytest.raises(UserError, match='has no trial 9'):
            study.retry(9)
