"""A study as a table."""

from pathlib import Path

from paxtune.storage.open_study import open_study
from tests.factories.studies import study_of_all_kinds
from tests.factories.toys import toy


def test_a_study_as_a_table(tmp_path: Path) -> None:
    with study_of_all_kinds(tmp_path) as study:
        frame = study.to_pandas()
        assert list(frame.index) == [1, 2, 3, 4]
        assert list(frame.state) == ['completed', 'stopped', 'infeasible', 'active']
        assert list(frame.stopped) == [False, True, False, False]
        assert frame.loc[1, 'loss'] == study.trials[0].reward
        assert frame.loc[1, 'metrics.accuracy'] == study.trials[0].metrics['accuracy']
        assert frame.loc[2, 'decisions.rate'] == study.trials[1].decisions['rate']
        assert frame['loss'].isna().tolist() == [False, False, True, True]
    with open_study(None, toy()) as empty:
        assert len(empty.to_pandas()) == 0
