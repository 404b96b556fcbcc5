"""Fuzzes the JSON of experiments, initial trials, exports and stored studies."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest
from hypothesis import strategies as st

from paxtune.objectives.limits import Limit
from paxtune.reports.study_edits import import_file
from paxtune.schedulers import MedianStopping
from paxtune.search_space.decisions import size, spec_from_json, spec_to_json
from paxtune.search_space.space import Space
from paxtune.storage.codec import decode_study, encode_study
from paxtune.storage.open_study import join_study, open_study
from paxtune.study import export, initial_trials, trial_import
from paxtune.study.plan import SearchPlan
from paxtune.study.record import PriorTrial, StudyRecord
from paxtune.study.study import Study
from tests.factories.studies import ask, finish, run_all_kinds
from tests.factories.toys import LOSS, search, toy
from tests.factories.tunables import Kinds
from tests.fuzz import trees, watch
from trainer.symbolic.component import Component
from trainer.symbolic.derived import derived
from trainer.symbolic.serialization import from_json_text, to_json_text

pytestmark = pytest.mark.hypothesis

EXPERIMENTS = [toy(), toy(widths=derived('rate * 2')), Kinds()]


@contextlib.contextmanager
def _studies(directory: Path) -> Iterator[tuple[Any, Study]]:
    """Exports a study with trials of all kinds, and makes another study for them."""
    how = search(
        scheduler=MedianStopping(), limits=[Limit('accuracy', at_least=-5.0)], initial_trials=[{}]
    )
    with open_study(directory, toy(search=how), data={'text': 'abc'}) as study:
        run_all_kinds(study)
        exported = json.loads(json.dumps(export.export(study)))
    with open_study(None, toy(), data={'text': 'abd'}) as other:
        yield exported, other


# --- Experiments ---


@pytest.mark.parametrize('experiment', EXPERIMENTS, ids=['open', 'derived', 'whole'])
def test_experiments(experiment: Any) -> None:
    tree = json.loads(to_json_text(experiment))

    def check(text: str) -> None:
        made = watch.refused_or_taken(lambda: from_json_text(text, Component, 'a file'))
        if made is not None:
            assert isinstance(made, Component)
            assert to_json_text(made)
            watch.refused_or_taken(lambda: Space(made))

    watch.for_all(160, check, trees.texts(tree))


def test_anything_symbolic() -> None:
    def check(tree: Any) -> None:
        text = json.dumps(tree)
        watch.refused_or_taken(lambda: (from_json_text(text, object, 'a file'),))

    watch.for_all(300, check, trees.anything())


def test_search_spaces() -> None:
    tree = json.loads(spec_to_json(Space(toy()).spec))

    def check(text: str) -> None:
        watch.refused_or_taken(lambda: (size(spec_from_json(text)),), ValueError)

    watch.for_all(100, check, trees.texts(tree))


# --- Trials ---


def test_initial_trials(tmp_path: Path) -> None:
    path = tmp_path / 'seeds.json'
    decisions = [
        {'rate': 0.01, 'layer': 'Dense', 'widths[0]': 4, 'widths[1]': 2},
        {'rate': 0.02, 'layer': 'Block()', 'layer.heads': 4},
    ]

    def check(text: str) -> None:
        path.write_bytes(text.encode(errors='surrogatepass'))
        given = watch.refused_or_taken(lambda: (initial_trials.read(str(path)),))
        if given is None:
            return
        # Everything that `read` accepts must be usable in a study.
        made = toy()
        made.rebind({'search.initial_trials': given[0]}, raise_on_no_change=False)
        assert to_json_text(made)
        watch.refused_or_taken(lambda: SearchPlan.compile(made))

    some = [trees.texts(decisions), trees.texts({'trials': [{'decisions': decisions[0]}]})]
    watch.for_all(200, check, st.one_of(*some))


def test_imported_studies(tmp_path: Path) -> None:
    path = tmp_path / 'export.json'
    with _studies(tmp_path / 'study') as (exported, study):

        def check(text: str) -> None:
            path.write_bytes(text.encode(errors='surrogatepass'))
            watch.refused_or_taken(lambda: import_file(study, str(path)))
            for trial in study.trials:
                assert json.dumps(export.content(trial), allow_nan=False)
                study.delete_trial(trial.id)

        watch.for_all(160, check, trees.texts(exported))


def test_imported_trials(tmp_path: Path) -> None:
    with _studies(tmp_path / 'study') as (exported, study):

        def check(trial: Any) -> None:
            watch.refused_or_taken(lambda: trial_import.import_trials(study, [trial], 'a file'))
            for added in study.trials:
                assert json.dumps(export.content(added), allow_nan=False)
                study.delete_trial(added.id)

        changed = st.sampled_from(exported['trials'][:3]).flatmap(trees.changed)
        watch.for_all(300, check, changed)


# --- Studies ---


def _record() -> StudyRecord:
    """A study whose search stands beside its value, and which learns from others."""
    value, how = (
        pg.Dict(rate=pg.floatv(0.0, 1.0), kind=pg.oneof(['a', 'b'])),
        search(objective=LOSS),
    )
    priors = [PriorTrial({'rate': 0.5, 'kind': 1}, (1.0,))]
    return SearchPlan.compile(value, how, {'text': 'abc'}).record(False, priors)


def test_records_of_a_study() -> None:
    spec = encode_study(_record())
    (item,) = (each for each in spec.metadata if each.key == 'record')

    def check(text: str) -> None:
        # A study is text, and knows no halves of characters.
        item.value = text.encode(errors='replace').decode()
        watch.refused_or_taken(lambda: decode_study(spec, 'a study'))

    watch.for_all(200, check, trees.texts(json.loads(item.value)))


@pytest.mark.parametrize('name', ['value', 'search', 'spec'])
def test_studies_that_another_program_has_changed(name: str, tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as study:
        finish(ask(study))
        whole = dataclasses.replace(study.record, exhausted=7, stop_requests=(1,))

    def check(text: str) -> None:
        with open_study(None, toy()) as study:
            changes: dict[str, Any] = {name: text.encode(errors='replace').decode()}
            changed = dataclasses.replace(whole, **changes)
            study.store.update_study(lambda _: changed)
            watch.refused_or_taken(lambda: join_study(study.store, tmp_path))

    watch.for_all(20, check, trees.texts(json.loads(getattr(whole, name) or '{}')))
