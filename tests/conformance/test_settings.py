"""Each field of a search, a train loop and a learner changes what is recorded or computed."""

import functools
import gc
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pyglove as pg
import pytest

from paxtune.algorithms import GPBandit, QuasiRandom, RegularizedEvolution
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.faults import Faults
from paxtune.config.retention import Retention
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.aggregation import BestStep
from paxtune.objectives.limits import Limit
from paxtune.objectives.rewards import MetricReward
from paxtune.running.trial_errors import StudyStoppedError
from paxtune.running.trial_spec import experiments
from paxtune.schedulers import ThresholdStopping
from paxtune.search_space.constraints import Requires
from paxtune.storage.open_study import open_study
from paxtune.study.checkpoint_retention import CheckpointCleaner
from paxtune.study.record import Lineage, TrialRecord
from tests.factories.parts import GRADIENTS, stepped
from tests.factories.runs import without_speed
from tests.factories.tiny import CountingInput, experiment
from tests.paxtune.study.test_checkpoint_retention import add
from trainer.decoding import Greedy
from trainer.experiment import Checkpoints, Decoding, Evaluation, TrainLoop
from trainer.learner import (
    SGD,
    AuxiliaryOptimizer,
    Constant,
    Learner,
    NormMetrics,
    TrainOnly,
)
from trainer.learner.width_scaling import WidthScaling
from trainer.loop.report import Report
from trainer.loop.train_loop import run
from trainer.program.setup import compiled
from trainer.runtime.metric_writer import read_metrics
from trainer.runtime.metrics_file import METRICS
from trainer.symbolic.component import Component

Effect = Callable[[Any], object]
Change = tuple[Any, Effect]

SPACE = pg.Dict(x=pg.floatv(0.0, 100.0))
LOSS = MetricReward('minimize', 'loss')


def learned(learner: Learner, gradients: Any = GRADIENTS) -> object:
    """The state and the metrics after two steps."""
    return repr(jax.device_get(stepped(learner, 2, gradients=gradients)))


def learned_from_nan(learner: Learner) -> object:
    return learned(learner, jax.tree.map(lambda leaf: leaf * jnp.nan, GRADIENTS))


def memory(learner: Learner) -> object:
    """The device memory of the compiled step."""
    return compiled(experiment(task__learner=learner))[0].device_memory_bytes()


def memory_kinds(learner: Learner) -> object:
    """Where the state of the optimizer lies."""
    program, values = compiled(experiment(task__learner=learner))
    state = program.init(program.random_key(0), values)
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.opt_state)}


def trained_in_bfloat16(learner: Learner) -> object:
    return trained(learner, task__param_dtype='bfloat16')


def trained(learner: Learner, **fields: Any) -> object:
    """The reports of a run, whose initial values depend on the learner, too."""
    with tempfile.TemporaryDirectory() as name:
        made = experiment(task__learner=learner, **fields)
        return [(each.step, without_speed(each)) for each in run(made, Path(name))]


LEARNER: dict[str, Change] = {
    'learning_rate': (0.2, learned),
    'schedule': (Constant(warmup_steps=9), learned),
    'optimizer': (SGD(), learned),
    'clipping': (None, learned),
    'skip': (None, learned_from_nan),
    'freeze': (TrainOnly(['embedding.*']), learned),
    'microbatches': (2, memory),
    'ema_decay': (0.9, learned),
    'auxiliary_optimizers': ({'a': AuxiliaryOptimizer(['embedding.*'], 0.5)}, learned),
    'norm_metrics': (NormMetrics(parameters=True), learned),
    'width_scaling': (WidthScaling({'task.model.embedding.dims': 8}), trained),
    'stochastic_rounding': (True, trained_in_bfloat16),
    'offload_state': (True, memory_kinds),
}


def reports(loop: TrainLoop, directory: Path) -> Iterator[Report]:
    return run(
        experiment(
            task__decoder=Greedy(2, prompt_length=2),
            decode_inputs={'test': CountingInput(batch_size=8, num_eval_batches=1)},
            train=loop,
        ),
        directory,
    )


def recorded(loop: TrainLoop) -> object:
    """The reports of a run, and the steps of its files."""
    with tempfile.TemporaryDirectory() as name:
        measured = [
            (each.step, {**without_speed(each), 'spent_seconds': 0.0})
            for each in reports(loop, Path(name))
        ]
        written = [each['step'] for each in read_metrics(Path(name) / METRICS)]
        checkpoints = sorted(each.name for each in Path(name).glob('checkpoints/*'))
    return measured, written, checkpoints


def garbage_is_collected(loop: TrainLoop) -> object:
    with tempfile.TemporaryDirectory() as name:
        return [gc.isenabled() for _ in reports(loop, Path(name))]


def waits(loop: TrainLoop) -> object:
    """The number of times that the loop waits for a step."""
    calls, wait = [], jax.block_until_ready

    def counted(value: Any) -> Any:
        calls.append(value)
        return wait(value)

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, 'block_until_ready', counted)
        list(reports(loop, Path(name)))
    return len(calls)


@functools.cache
def other_run() -> str:
    """The checkpoints of a run with other weights."""
    directory = Path(tempfile.mkdtemp())
    list(reports(LOOP.clone(override={'random_seed': 7}), directory))
    return str(directory / 'checkpoints')


LOOP = TrainLoop(
    num_train_steps=4,
    evaluation=Evaluation(2),
    checkpoints=Checkpoints(2),
    summary_interval_steps=2,
)
LOOPS: dict[str, Change] = {
    'num_train_steps': (3, recorded),
    'evaluation': (Evaluation(1), recorded),
    'checkpoints': (Checkpoints(1), recorded),
    'decoding': (Decoding(2), recorded),
    'summary_interval_steps': (1, recorded),
    'max_inflight_steps': (0, waits),
    'steps_per_execution': (2, waits),
    'gc_interval_steps': (1, garbage_is_collected),
    'random_seed': (1, recorded),
    'init_from_checkpoint': (other_run, recorded),
}


def losses(values: Any) -> Iterator[dict[str, float]]:
    if values.x < 20:
        raise ValueError('too small')
    for factor in (1.0, 3.0, 2.0):
        yield {'loss': factor * values.x, 'other': -factor * values.x}


def tuned(search: Search) -> object:
    """The records of a study of a function."""
    fields = {str(name): search.sym_getattr(str(name)) for name in search.__schema__.fields}
    try:
        study = tune(losses, space=SPACE, **fields)
    except StudyStoppedError as error:
        return str(error)
    return [
        (each.record.parameters, each.state, each.record.final, each.record.lineage)
        for each in study.trials
    ]


def suggested(search: Search) -> object:
    """The prior of the first suggestion."""
    with open_study(None, SPACE, search=search) as study:
        return study.suggester.context(1).prior


def kept(search: Search) -> object:
    """The trials whose checkpoints are removed."""
    with tempfile.TemporaryDirectory() as name, open_study(name, SPACE, search=search) as study:
        for loss in (50.0, 10.0, 30.0):
            add(study, loss)
        return CheckpointCleaner(study).remove_unneeded()


def begun(search: Search) -> object:
    """The steps of a child."""
    made = Tunable(**dict(experiment().sym_init_args), search=search)
    made.rebind({'task.learner.learning_rate': pg.floatv(0.1, 0.2)})
    with tempfile.TemporaryDirectory() as name, open_study(name, made) as study:
        rates = study.add({}).view.record.parameters
        study.store.add_trials([TrialRecord(rates, lineage=Lineage(parent=1, warm_start=1))])
        return experiments(study, study.trial(2))[''].train.num_train_steps


SEARCH = Search(LOSS, Budget(6), QuasiRandom())
SEARCHES: dict[str, Change] = {
    'objective': (MetricReward('minimize', 'other'), tuned),
    'budget': (Budget(4), tuned),
    'algorithm': (RegularizedEvolution(2, 1), tuned),
    'scheduler': (ThresholdStopping(milestones=[[1, 50.0]]), tuned),
    'seed': (1, tuned),
    'metric_aggregation': (BestStep(), tuned),
    'constraints': ([Requires('x > 50', 'small')], tuned),
    'limits': ([Limit('loss', at_most=100.0)], tuned),
    'initial_trials': ([{'x': 42.0}], tuned),
    'prior': ({'x': 42.0}, suggested),
    'replicates': (2, tuned),
    'warm_start': ('parent', tuned),
    'child_overrides': ({'train.num_train_steps': 3}, begun),
    'faults': (Faults(errors_to_skip=[]), tuned),
    'retention': (Retention(best=1), kept),
}
CHANGES: dict[type[Component], dict[str, Change]] = {
    Learner: LEARNER,
    TrainLoop: LOOPS,
    Search: SEARCHES,
}
"""For each field another value, and an effect of it."""

BASES = {
    'prior': Search(LOSS, Budget(6), GPBandit()),
    'warm_start': Search(LOSS, Budget(6), RegularizedEvolution(2, 1)),
    'child_overrides': Search(LOSS, Budget(6), RegularizedEvolution(2, 1), warm_start='parent'),
}


@functools.cache
def effect_of_base(effect: Effect, component: type[Component], field: str) -> object:
    return effect(base_of(component, field))


def base_key(field: str) -> str:
    return field if field in BASES else ''


def base_of(component: type[Component], field: str) -> Any:
    if component is Learner:
        return Learner(0.1)
    return LOOP if component is TrainLoop else BASES.get(field, SEARCH)


@pytest.mark.parametrize(
    ('component', 'field'),
    [
        (Learner, 'skip'),
        (Learner, 'microbatches'),
        (Learner, 'schedule'),
        (TrainLoop, 'evaluation'),
        (TrainLoop, 'max_inflight_steps'),
        (TrainLoop, 'gc_interval_steps'),
        (Search, 'seed'),
        (Search, 'warm_start'),
        (Search, 'prior'),
        (Search, 'retention'),
    ],
)
def test_equal_settings_have_equal_effects(component: type[Component], field: str) -> None:
    _, effect = CHANGES[component][field]
    assert effect(base_of(component, field)) == effect_of_base(effect, component, base_key(field))


@pytest.mark.parametrize(
    ('component', 'field'),
    [
        pytest.param(component, str(field), id=f'{component.__name__}.{field}')
        for component in CHANGES
        for field in component.__schema__.fields
    ],
)
def test_a_field_changes_what_is_recorded_or_computed(
    component: type[Component], field: str
) -> None:
    value, effect = CHANGES[component][field]
    base = base_of(component, field)
    changed = base.clone(deep=True, override={field: value() if callable(value) else value})
    assert effect(changed) != effect_of_base(effect, component, base_key(field))
