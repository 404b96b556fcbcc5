"""Anything in an experiment can be searched, under constraints, on 8 simulated devices."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyglove as pg
import pytest

from paxtune.algorithms.encoding.sampling import draw
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.validation import validate_space
from tests.factories.tunables import MAX_PARAMS, Everything
from trainer.learner import GlobalNorm
from trainer.symbolic.ranges import intv

_SCRIPT = """
import sys
from paxtune.api import tune
from tests.factories.tunables import Everything
what = Everything().rebind({'search.budget.trials': 6, 'search.prior': None})
tune(what, job_log_dir=sys.argv[1]).close()
"""


@pytest.fixture(scope='module')
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp('everything')
    flags = '--xla_force_host_platform_device_count=8'
    done = subprocess.run(
        [sys.executable, '-c', _SCRIPT, str(path)],
        env={**os.environ, 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.slow
def test_no_trial_violates_a_constraint_or_the_parameter_limit(directory: Path) -> None:
    with load_study(directory) as study:
        assert [trial.reason for trial in study.trials] == [None] * 6
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 6
        for trial in study.trials:
            made = trial.materialize()
            assert trial.metrics['num_params'] <= MAX_PARAMS
            assert made.mesh.data * made.mesh.fsdp <= made.train_input.batch_size
            assert made.shared.width >= made.mesh.tensor * 4
            assert made.task.model.embedding.dims == made.shared.width


@pytest.mark.pax('What is traced: task', 'A hyper in a region', 'enable_dataset_tuning')
def test_every_part_of_an_experiment_may_hold_decisions() -> None:
    everything = Everything()
    clipping = pg.oneof([None, GlobalNorm(pg.floatv(0.5, 2.0))])
    everything.rebind({'train.random_seed': intv(0, 99), 'task.learner.clipping': clipping})
    space = Space(everything)
    validate_space(space)
    parts = {path.partition('.')[0] for path in space.paths}
    assert parts == {'mesh', 'shared', 'task', 'train', 'train_input'}
    rng = random.Random(0)
    made = [space.materialize(draw(space.spec, rng)) for _ in range(8)]
    assert all(map(pg.is_deterministic, made))
    for part in parts:
        assert len({pg.to_json_str(each.sym_getattr(part)) for each in made}) > 1, part


@pytest.mark.slow
def test_each_kind_of_decision_was_searched(directory: Path) -> None:
    with load_study(directory) as study:
        tried = [trial.decisions for trial in study.trials]
    for path in (
        'mesh',
        'shared.width',
        'task.learner.learning_rate',
        'train_input.weights.a',
        'task.model.stack.layers[0].feed_forward',
    ):
        assert len({json.dumps(decisions[path]) for decisions in tried}) > 1, path


@pytest.mark.slow
def test_experiments_beyond_the_limits_are_never_suggested() -> None:
    """The limits matter: without them the same algorithm suggests what they forbid."""
    limited = Everything().rebind({'search.prior': None})
    free = limited.clone(deep=True).rebind({'search.constraints': [], 'search.limits': []})
    with open_study(None, limited) as bounded, open_study(None, free) as unbounded:
        reasons = []
        for _ in range(8):
            trial = unbounded.ask()
            assert trial is not None
            reasons.append(bounded.suggester.feasibility.why_infeasible(trial.view.by_id))
            trial.fail('not trained')
            suggested = bounded.ask()
            assert suggested is not None
            assert bounded.suggester.feasibility.why_infeasible(suggested.view.by_id) is None
            suggested.fail('not trained')
    assert any('num_params' in str(reason) for reason in reasons)
    assert any('too narrow' in str(reason) or 'idle' in str(reason) for reason in reasons)
