"""Settings of a search that would have no effect."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pyglove as pg
import pytest

from paxtune.algorithms import (
    Algorithm,
    Default,
    GPBandit,
    HillClimbing,
    QuasiRandom,
    RegularizedEvolution,
)
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.faults import Faults
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.rewards import MetricReward
from paxtune.running.tuner import Paused
from paxtune.schedulers import (
    Asha,
    MedianStopping,
    PopulationBasedTraining,
    Scheduler,
    ThresholdStopping,
)
from paxtune.schedulers.resources import without_effect
from paxtune.search_space.constraints import Constraint, Infeasible, Requires
from paxtune.search_space.space import Space
from paxtune.study.feasibility import Feasibility
from paxtune.study.plan import SearchPlan
from paxtune.study.samples import first_fitting
from paxtune.study.validation import validate_steps
from tests.factories import tiny
from tests.factories.labelled import FAULTS, MESSAGES, Points, classifier
from tests.factories.tiny import CountingInput
from tests.factories.tunables import rates
from trainer.decoding import Greedy
from trainer.experiment import Evaluation, Experiment
from trainer.inputs.base import Batch, EndOfData
from trainer.layers import (
    Attention,
    Experts,
    FeedForward,
    Layer,
    Positions,
    TransformerBlock,
)
from trainer.mesh import Mesh
from trainer.runtime.signals import SkipTrial
from trainer.symbolic.errors import UserError


@pytest.mark.parametrize('algorithm', [Default(), GPBandit(), QuasiRandom()])
def test_a_warm_start_needs_an_algorithm_that_names_parents(algorithm: Algorithm) -> None:
    plan = rates(search__algorithm=algorithm, search__warm_start='parent')
    with pytest.raises(UserError, match=r'^search\.warm_start: \w+ derives no trial from another'):
        SearchPlan.compile(plan)


@pytest.mark.parametrize('algorithm', [RegularizedEvolution(), HillClimbing()])
def test_a_warm_start_needs_checkpoints(algorithm: Algorithm) -> None:
    made = rates(search__algorithm=algorithm, search__warm_start='parent')
    SearchPlan.compile(made)
    with pytest.raises(UserError, match=r'^search\.warm_start: .*train\.checkpoints is None'):
        SearchPlan.compile(made.rebind({'train.checkpoints': None}))


def test_a_trial_timeout_needs_workers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'^search\.faults\.trial_timeout .*--workers=1'):
        tune(rates(), faults=Faults(trial_timeout=9.0), job_log_dir=tmp_path)
    assert not (tmp_path / 'study.db').exists()


@pytest.mark.parametrize(
    ('scheduler', 'fields'),
    [
        (Asha(min_resource=4), []),
        (Asha(min_resource=5), ['min_resource']),  # The next evaluation is at the end.
        (Asha(min_resource=4 * 64, unit='tokens'), []),
        (Asha(min_resource=5 * 64, unit='tokens'), ['min_resource']),
        (Asha(min_resource=9, max_resource=99, unit='seconds'), []),
        (Asha(min_resource=1, grace_period=0.9), ['grace_period']),
        (ThresholdStopping(milestones=[[4, 1.0], [6, 1.0], [9, 1.0]]), [1, 2]),
        (PopulationBasedTraining(population_size=2, interval=4), []),
        (PopulationBasedTraining(population_size=2, interval=6), ['interval']),
        (MedianStopping(warmup_steps=100), ['warmup_steps']),
    ],
)
def test_a_scheduler_for_which_training_is_too_short_is_named(
    scheduler: Scheduler, fields: list[Any]
) -> None:
    """The six steps are evaluated after every second one."""
    parts = first_fitting(Space(rates())).values
    found = [text.split(':')[0] for text in without_effect(scheduler, parts)]
    names = [f'milestones[{each}]' if isinstance(each, int) else each for each in fields]
    assert found == [f'search.scheduler.{name}' for name in names]


# --- Faults that have nothing to do with decisions ---


def text(**overrides: Any) -> Tunable:
    """The tiny language model with a rate to search."""
    return searched(tiny.experiment(**overrides), metric='eval/loss')


def searched(experiment: Experiment, metric: str = 'test/loss') -> Tunable:
    """An experiment with a rate to search."""
    search = Search(MetricReward('minimize', metric), Budget(2))
    made = Tunable(**dict(experiment.sym_init_args), search=search)
    return made.rebind({'task.learner.learning_rate': pg.floatv(1e-3, 1e-1)})


@pytest.mark.parametrize('name', ['labels from 1', 'evaluation of a column', 'no loss'])
def test_a_fault_of_all_experiments_is_reported_first(name: str, tmp_path: Path) -> None:
    made = searched(FAULTS[name]())
    with pytest.raises(UserError, match=MESSAGES[name]) as caught:
        tune(made, job_log_dir=tmp_path / 'study')
    assert str(caught.value).splitlines()[-1] == '(So it is in all of 50 drawn experiments.)'
    assert not (tmp_path / 'study').exists()


def test_a_fault_of_some_decisions_is_left_to_trials() -> None:
    made = searched(classifier())
    SearchPlan.compile(made.clone().rebind({'train_input.first': pg.oneof([1, 0])}))
    columns = {'train_input.is_column': pg.oneof([True, False]), 'train_input.is_float': True}
    SearchPlan.compile(made.clone().rebind(columns))
    faulty = made.clone().rebind({'train_input.first': pg.oneof([1, 2, 3, 0])})
    faulty.rebind({'search.constraints': [Requires('train_input.first == 0', 'shifted')]})
    SearchPlan.compile(faulty)


class Rows(Layer):
    """x + x @ kernel, with any logical axes.

    Attributes:
        rows: axis of the inputs of the kernel.
        features: axis of the features of the result.
    """

    rows: str = 'embed'
    features: str = 'features'

    def forward(self, x_BTD: Any, positions: Positions | None = None) -> Any:
        kernel = self.param('kernel', (x_BTD.shape[-1],) * 2, (self.rows, None))
        return self.constrain(x_BTD + x_BTD @ kernel, ('batch', 'length', self.features))


MESHES: dict[str, tuple[Layer, dict[str, Any], str]] = {
    'a parameter without a rule': (
        Rows(rows='rows'),
        {},
        r"^parameter stack\.layers_0\.kernel: there is no rule for the logical axis 'rows'",
    ),
    'an activation without a rule': (
        Rows(features='featurs'),
        {},
        r'^an activation of Rows at .task\.model\.stack\.layers\[0\].*Did you mean features\?',
    ),
    'a mesh that divides no parameter': (
        Rows(),
        {'fsdp': 3},
        r"^parameter embedding\.table: axis 'embed' of size 16 does not divide evenly over the 3",
    ),
    'a mesh that divides no experts': (
        TransformerBlock(Attention(2), Experts(3, 8)),
        {'expert': 2},
        r"^parameter stack\.layers_0\.feed_forward\.down: axis 'experts' of size 3 does not divide",
    ),
    'a mesh that divides no activation': (
        Rows(features='mine'),
        {'axes': {'mine': 3}, 'rules': {'mine': 'mine'}},
        r"^an activation of Rows at .*: axis 'mine' of size 16 does not divide evenly over the 3",
    ),
    'a mesh that divides no positions': (
        Rows(),
        {'sequence': 3},
        r"^train_input: 8 positions of 'ids' do not divide evenly over the 3 devices",
    ),
}


@pytest.mark.fast(2)
@pytest.mark.parametrize('name', MESHES)
def test_a_mesh_that_fits_no_experiment_is_reported_first(name: str, tmp_path: Path) -> None:
    layer, sizes, message = MESHES[name]
    made = text(task__model__stack__layers=[layer], mesh=Mesh(data=1, **sizes))
    with pytest.raises(UserError, match=message) as caught:
        tune(made, job_log_dir=tmp_path / 'study')
    assert str(caught.value).splitlines()[-1] == '(So it is in all of 50 drawn experiments.)'
    assert not (tmp_path / 'study').exists()


def test_a_mesh_may_be_larger_than_this_machine() -> None:
    SearchPlan.compile(text(mesh=Mesh(data=16)))  # Each host has a part of a batch.


class Uncached(Layer):
    """Adds the previous position, without a cache."""

    def forward(self, x_BTD: Any, positions: Positions | None = None) -> Any:
        return jnp.pad(x_BTD, ((0, 0), (1, 0), (0, 0)))[:, :-1]


def test_a_layer_that_cannot_decode_is_reported_first(tmp_path: Path) -> None:
    made = text(
        task__model__stack__layers=[TransformerBlock(Uncached(), FeedForward(8))],
        task__decoder=Greedy(4, prompt_length=3),
        decode_inputs={'test': CountingInput(batch_size=8)},
    )
    message = r'^task\.model\.stack\.layers\[0\]\.attention \(Uncached\): it cannot decode token by'
    with pytest.raises(UserError, match=message):
        tune(made, job_log_dir=tmp_path / 'study')
    assert not (tmp_path / 'study').exists()


class Empty(Points):
    """Has no example."""

    def get_next(self) -> Batch:
        raise EndOfData


def test_an_input_without_examples_is_reported_first() -> None:
    made = searched(classifier()).rebind(train_input=Empty(batch_size=4, is_training=True))
    with pytest.raises(UserError, match=r'^train_input: no examples'):
        SearchPlan.compile(made)
    with pytest.raises(UserError, match=r'^train_input: no examples\n\(So it is in all of 50'):
        validate_steps(Feasibility(Space(made), made.search))


class Skipping(Points):
    """Raises a signal of an experiment."""

    def get_next(self) -> Batch:
        raise SkipTrial('not today')


def test_a_signal_is_left_to_trials() -> None:
    data = Skipping(batch_size=16, is_training=True)
    SearchPlan.compile(searched(classifier(train_input=data)))


class Never(Constraint):
    """Forbids everything, and counts how often it was asked."""

    def require(self, experiment: Any) -> None:
        ASKED.append(1)
        raise Infeasible(f'{len(ASKED)} is too much')


ASKED: list[int] = []


def test_a_request_to_stop_is_seen_between_draws(tmp_path: Path) -> None:
    ASKED.clear()
    with pytest.raises(Paused, match='interrupted'):
        tune(
            lambda x: x,
            space={'x': pg.floatv(0.0, 1.0)},
            objective='minimize',
            constraints=[Never()],
            num_trials=3,
            job_log_dir=tmp_path,
            should_interrupt=lambda: len(ASKED) > 200,
        )
    assert len(ASKED) < 300


def test_a_request_to_stop_is_seen_before_the_study_exists(tmp_path: Path) -> None:
    made = searched(FAULTS['no loss']())
    with pytest.raises(Paused, match='interrupted before the search began'):
        tune(made, job_log_dir=tmp_path / 'study', should_interrupt=lambda: True)
    assert not (tmp_path / 'study').exists()


def test_an_evaluation_at_the_end_alone_is_too_late_for_a_scheduler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    SearchPlan.compile(
        rates(search__scheduler=Asha(min_resource=1), train__evaluation=Evaluation(6))
    )
    (text,) = caplog.messages
    assert 'at 1 steps. The last evaluation before the end is at 0.' in text
