"""Names for completion, read from the sources."""

from pathlib import Path

from paxtune.algorithms import Algorithm
from paxtune.completion import source_names
from paxtune.config.named_components import classes_of
from paxtune.schedulers import Scheduler
from trainer.experiment import Experiment
from trainer.symbolic import registry


def test_the_names_of_experiments_are_those_that_exp_takes(tmp_path: Path) -> None:
    found, broken = registry.available(Experiment)
    assert not broken
    assert sorted(source_names.experiments('', tmp_path)) == sorted(found)


def test_the_names_of_algorithms_and_schedulers_are_those_of_the_flags() -> None:
    assert source_names.algorithms() == sorted(classes_of(Algorithm))
    assert source_names.schedulers() == sorted(classes_of(Scheduler))


def test_modules_in_packages_are_read_where_the_prefix_names_them(tmp_path: Path) -> None:
    (tmp_path / 'lab').mkdir()
    (tmp_path / 'lab' / 'text.py').write_text(
        'import paxtune\n'
        'class Base(paxtune.Tunable): ...\n'
        'class Fit(Base): ...\n'
        'def tiny(size=1) -> "paxtune.Tunable": ...\n'
        'def helper() -> int: ...\n'
    )
    assert source_names.experiments('lab.text.', tmp_path)[-3:] == [
        'lab.text.Base',
        'lab.text.Fit',
        'lab.text.tiny',
    ]
    assert 'lab.text.Fit' not in source_names.experiments('', tmp_path)
