"""The contract of components, checked on every component of every experiment."""

from collections.abc import Iterator
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import (
    CMAES,
    NSGA2,
    AnyMutation,
    DnaGenerator,
    Grid,
    HillClimbing,
    VizierDesigner,
)
from paxtune.config.error_patterns import ErrorPattern
from paxtune.config.search import Search
from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import (
    MetricReward,
    MnasHard,
    MnasSoft,
    Objectives,
    TunasAbsolute,
    WeightedSum,
)
from paxtune.schedulers import (
    Adaptive,
    Hyperband,
    PopulationBasedTraining,
    PromotingAsha,
    RankStopping,
    ThresholdStopping,
)
from paxtune.search_space.constraints import Requires
from paxtune.simulate.replay_workload import RecordedTrials
from search_spaces import encoders, lm, nas, vision
from tests.conformance.layer_examples import EXAMPLES, encoder_decoder
from tests.factories import tiny, tunables
from tests.search_spaces.golden import all_components
from trainer.decoding import BeamSearch, Sample
from trainer.experiment import BestCheckpoint, Decoding, Experiment, LocalCheckpoints
from trainer.inputs.arrays.arrays import NpzInput
from trainer.inputs.arrays.digits import DigitsInput
from trainer.inputs.arrays.images import ImagesInput
from trainer.inputs.finetuning.docstrings import DocstringInput
from trainer.inputs.finetuning.finetune_input import FinetuneInput
from trainer.inputs.grain.document_sources import (
    ArrayRecordFiles,
    ArrowFiles,
    ParquetFiles,
    TextLines,
)
from trainer.inputs.grain.grain_input import GrainInput
from trainer.inputs.lingvo import LingvoEvalAdaptor, LingvoInputAdaptorNewBatchSize
from trainer.inputs.mixture import MixtureInput
from trainer.inputs.multi import MultiInput
from trainer.inputs.seqio.seqio_input import SeqIOInput
from trainer.inputs.text.text import TextInput
from trainer.layers import FutureTokens, Linear, LinearScaling, Pipeline, YarnScaling
from trainer.learner import (
    SGD,
    Adafactor,
    AuxiliaryOptimizer,
    Constant,
    Cycle,
    DecayAtRungs,
    Elementwise,
    Learner,
    LinearSchedule,
    Noam,
    NormMetrics,
    Optax,
    ParameterNorm,
    Piecewise,
    PiecewiseConstant,
    Polynomial,
    Scaled,
    SqrtDecay,
    TrainOnly,
)
from trainer.learner.width_scaling import WidthScaling
from trainer.losses import MeanSquaredError, SigmoidCrossEntropy, WeightedLosses
from trainer.measures import MeanLoss
from trainer.symbolic import fields
from trainer.symbolic.component import Component, bind, components, is_number, key, numbers
from trainer.symbolic.serialization import from_json_text, to_json_text
from trainer.tasks import ClassificationTask, PreferenceTask, RegressionTask, SequenceTask
from trainer.warm_start_rules import Inheritance, LoadRule, Pretrained, TensorRule, WarmStart

_LEARNER = Learner(learning_rate=0.01)
_MORE = [
    Adafactor(momentum=0.9),
    AuxiliaryOptimizer(patterns=['embedding.*'], learning_rate=0.1),
    BestCheckpoint('eval/loss'),
    LocalCheckpoints('/dev/shm/runs'),
    RankStopping(milestones=[[10, 3, 5], [20, 0.5, 5]]),
    ThresholdStopping(
        milestones=[[10, 0.5]], metric=Metric.eval('loss', aggregator='max'), goal='minimize'
    ),
    ClassificationTask(model=Linear(4), learner=_LEARNER),
    Constant(warmup_steps=3),
    Cycle(schedules=[LinearSchedule(decay_steps=9)], steps=[9]),
    DecayAtRungs(ends=[5, 9], decay_share=0.5),
    Decoding(every=100),
    DigitsInput(batch_size=2, split='test'),
    DocstringInput(batch_size=2, split='train', sequence_length=8),
    Elementwise(0.5),
    DnaGenerator('pyglove.evolution.neat', {'population_size': 9}),
    ErrorPattern('RuntimeError', 'RESOURCE_EXHAUSTED'),
    Hyperband(min_resource=60.0, max_resource=3600.0, unit='seconds'),
    ImagesInput(batch_size=2, data_dir='/data', split='test', image_shape=[8, 8, 3]),
    Limit('num_params', at_most=1000),
    Pipeline(num_microbatches=2),
    FutureTokens([Linear(8)]),
    FinetuneInput(batch_size=2, sequence_length=8, paths=['/data/a.jsonl']),
    GrainInput(
        batch_size=2,
        sequence_length=8,
        sources={
            'a': ArrayRecordFiles(paths=['/data/a']),
            'b': ParquetFiles(paths=['/data/b']),
            'd': ArrowFiles(paths=['/data/d']),
            'c': TextLines(paths=['/data/c']),
        },
    ),
    LinearScaling(4.0),
    YarnScaling(4.0, original_length=64),
    LingvoEvalAdaptor(batch_size=2, generator='my.input'),
    LingvoInputAdaptorNewBatchSize(batch_size=2, generator='my.input'),
    MeanLoss('mean_squared_error', MeanSquaredError()),
    MnasHard('eval/accuracy', 'num_params', 1e6),
    MnasSoft('eval/accuracy', 'num_params', 1e6),
    NormMetrics(parameters=True),
    NpzInput(batch_size=2, path='/data/images.npz'),
    Objectives([MetricReward('maximize', 'eval/accuracy'), MetricReward('minimize', 'num_params')]),
    MixtureInput(
        batch_size=2,
        is_training=True,
        inputs={
            'a': TextInput(batch_size=2, is_training=True, sequence_length=8, paths=['/data/a']),
            'b': TextInput(batch_size=3, is_training=True, sequence_length=8, paths=['/data/b']),
        },
        weights={'a': 1.0, 'b': 0.5},
    ),
    Noam(warmup_steps=4),
    CMAES(population_size=8),
    Grid(points_per_range=None, shuffle=True),
    HillClimbing(starts=2),
    NSGA2(mutation=AnyMutation(weights=[1.0, 2.0, 1.0, 1.0, 1.0])),
    MultiInput(batch_size=2, inputs={'a': DigitsInput(batch_size=2, split='test')}),
    Optax(name='lion', hyperparameters={'b1': 0.9}),
    ParameterNorm(0.5),
    Piecewise(schedules=[Constant(), SqrtDecay()], boundaries=[5]),
    PiecewiseConstant(boundaries=[5, 9], values=[1.0, 0.5, 0.1]),
    Polynomial(decay_steps=9, power=2.0),
    PreferenceTask(model=tiny.model(), learner=_LEARNER),
    PopulationBasedTraining(population_size=8, interval=100, decisions=['learning_rate']),
    Adaptive(min_resource=1e8, unit='tokens'),
    PromotingAsha(min_resource=1e8, unit='tokens'),
    Requires(condition='task.model.dims % 4 == 0', reason='dims must be a multiple of 4'),
    RecordedTrials(Search(MetricReward('minimize', 'reward')), '/data/curves.json', {'x': 0.5}),
    RegressionTask(model=Linear(1), learner=_LEARNER),
    SGD(momentum=0.9),
    Scaled(schedule=Constant(), scale=0.5),
    SeqIOInput(
        batch_size=2, mixture_or_task='c4', split='train', task_feature_lengths={'targets': 8}
    ),
    SequenceTask(model=encoder_decoder(), learner=_LEARNER),
    TrainOnly(['head.*']),
    TunasAbsolute('eval/accuracy', 'num_params', 1e6),
    VizierDesigner('my.designers.Mine', {'seed': 1}),
    Inheritance('/runs/a/checkpoints'),
    Pretrained('/models/a', [TensorRule('head.kernel', 'lm_head.weight', 'transpose')]),
    WidthScaling({'task.model.embedding.dims': 64}),
    WarmStart('/runs/a/checkpoints', [LoadRule('head.*'), LoadRule(r'(a|b).*')], ignore=['c']),
    WeightedLosses(losses={'a': SigmoidCrossEntropy()}, weights={'a': 0.5}),
    WeightedSum('minimize', ['eval/loss', Metric.num_params()], [1.0, 1e-9]),
    Sample(4, num_samples=2, k=3),
    BeamSearch(4, eos_ids=[1]),
    *(example.layer for example in EXAMPLES.values()),
]
_EXPERIMENTS = [
    encoders.StdlibMasked,
    encoders.StdlibChange,
    lm.StdlibTunable,
    lm.C4Small,
    lm.C4Tunable,
    nas.StdlibNas,
    vision.DigitsTunable,
    tunables.Kinds,
]


def _concrete(experiment: Experiment) -> Experiment:
    if pg.is_deterministic(experiment):
        return experiment
    return pg.materialize(experiment, pg.dna_spec(experiment).first_dna())


_FIELDS: dict[str, Any] = {
    'batch_size': 2,
    'decay_steps': 9,
    'goal': 'minimize',
    'latent_dims': 4,
    'max_decode_steps': 4,
    'metric': 'eval/loss',
    'min_resource': 10,
    'paths': ['/data/a'],
    'sequence_length': 8,
    'vocab_size': 9,
}
"""Values of required fields. A class whose others have defaults needs no instance above."""


def _classes() -> list[type[Component]]:
    """Returns the component classes of the packages that are no bases, by name."""
    ours = all_components()
    bases = {cls for cls in ours if any(issubclass(other, cls) for other in ours - {cls})}
    return sorted(ours - bases, key=lambda cls: cls.__name__)


def instances() -> Iterator[Component]:
    """One instance of every component class of the packages."""
    seen: dict[type, Component] = {}
    for root in [*_MORE, *(_concrete(make()) for make in _EXPERIMENTS)]:
        for component in components(root):
            seen.setdefault(type(component), component.clone(deep=True))
    yield from seen.values()
    for cls in [cls for cls in _classes() if cls not in seen]:
        schema = cls.__schema__.items()
        required = {str(name) for name, field in schema if field.default_value is pg.MISSING_VALUE}
        if required <= _FIELDS.keys():
            yield cls(**{name: _FIELDS[name] for name in required})


@pytest.fixture(scope='module')
def every() -> list[Component]:
    return list(instances())


def test_every_component_of_the_packages_is_here(every: list[Component]) -> None:
    assert not {cls.__name__ for cls in _classes()} - {type(one).__name__ for one in every}


def test_json_brings_them_back(every: list[Component]) -> None:
    for component in every:
        again = from_json_text(to_json_text(component), type(component))
        assert pg.eq(again, component)
        assert to_json_text(again) == to_json_text(component)
        assert key(again) == key(component)


@pytest.mark.pax('ParameterizedExperiment', 'pax_fiddle')
def test_a_clone_is_another_object_all_through(every: list[Component]) -> None:
    for component in every:
        clone = component.clone(deep=True)
        assert pg.eq(clone, component)
        assert not {id(c) for c in components(clone)} & {id(c) for c in components(component)}


def test_no_object_stands_in_two_places(every: list[Component]) -> None:
    for component in every:
        places = [id(c) for c in components(component)]
        assert len(places) == len(set(places)), component


def test_their_numbers_can_be_bound_and_change_no_key(every: list[Component]) -> None:
    for component in every:
        tokens = {path: object() for path in numbers(component)}
        bound = bind(component, tokens)
        assert numbers(bound) == tokens
        assert key(bound) == key(component)


def test_no_field_is_named_like_a_method(every: list[Component]) -> None:
    for component in every:
        names = {str(name) for name in component.sym_init_args}
        assert not names & set(dir(pg.Object)), component


def test_fields_are_plain(every: list[Component]) -> None:
    plain = (bool, int, float, str, type(None), pg.Object, pg.Dict, pg.List)
    for component in every:
        for name, value in component.sym_items():
            assert isinstance(value, plain), (component, name)
            assert not is_number(component, name) or isinstance(
                value, (int, float, pg.Dict, pg.List, type(None))
            ), (component, name)


def test_usual_values_fit_their_fields(every: list[Component]) -> None:
    for component in every:
        for name, usual in component.usual_values(None).items():
            owner, spec = type(component), fields.spec_of(component, name)
            if isinstance(usual.value, type):
                assert issubclass(usual.value, Component), (owner, name)
                continue
            value = round(usual.value) if fields.wants_integer(spec) else usual.value
            fields.fit(spec, value, f'{owner.__name__}.{name}')
            if f'{owner.__name__}.{name}' not in _NEEDS_OTHERS:
                excluded = _EXCLUDED & {*component.sym_init_args} - {name}
                component.clone(deep=True).rebind(
                    {**dict.fromkeys(excluded), name: value}, raise_on_no_change=False
                )


_EXCLUDED = {'weight_decay', 'l1_regularizer_weight', 'l2_regularizer_weight'}
"""Fields of which only one may have a value."""

_NEEDS_OTHERS = {
    'Attention.window',
    'FeedForward.hidden_ratio',
    'ImagesInput.flip',
    'RelativeBias.num_buckets',
}
"""Fields whose usual value does not suit the other fields of the instance."""
