"""Every registered experiment runs at its smoke size."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyglove as pg
import pytest

from paxtune import search
from paxtune.experiment import Tunable
from paxtune.search_space.decisions import decide
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study
from search_spaces import lm
from tests.servers.processes import command, passed
from trainer import main
from trainer.experiment import Experiment
from trainer.inputs.text.stdlib import StdlibInput
from trainer.program.setup import compiled, localized
from trainer.runtime.metric_writer import read_metrics
from trainer.symbolic import overrides, registry

_NAMES = registry.available(Experiment)[0]
# One of each family, whose others differ in sizes. `test_nas.py` searches architecture spaces.
_RUNS = (
    'vision.MnistExperiment',
    'c4.C4Spmd1BAdam4Replicas',
    'c4_multislice.C4Spmd22BAdamMaxText',
    'gpt.GPT126M',
    'lm.C4Small',
    'lm_cloud.LmCloudTransformerAdamTest',
    'lm_cloud.LmCloudSpmdTestTunable',
    'encoders.StdlibMasked',
    'encoders.StdlibChange',
    'encoders.StdlibDepth',
    'lm.StdlibFuture',
    'lm.FinetuneTunable',
    'vision.DigitsTunable',
    'vision.ResNet50Pjit',
)


@pytest.mark.pax('An experiment that')
def test_the_registered_experiments() -> None:
    names, broken = registry.available(Experiment)
    assert not broken
    assert {'lm.StdlibTunable', 'lm.C4Small', *_RUNS} <= set(names)


@pytest.mark.pax('LmCloudSpmdTest', 'ResNet50Pjit', 'MnistExperiment')
@pytest.mark.parametrize('name', _RUNS)
@pytest.mark.fast(1)
def test_one_of_each_family_runs_at_its_smoke_size(name: str, tmp_path: Path) -> None:
    flags = [f'--exp={name}', f'--job_log_dir={tmp_path}', '--smoke']
    if isinstance(registry.find(name, Experiment), Tunable):
        assert search.main([*flags, '--num_trials=1']) == 0
    else:
        assert main.main(flags) == 0


@pytest.mark.parametrize('name', _NAMES)
def test_each_has_a_docstring_with_its_command(name: str) -> None:
    module, function = name.split('.')
    found = __import__(f'search_spaces.{module}', fromlist=[function])
    assert f'--exp={name}' in (getattr(found, function).__doc__ or str(found.__doc__))


# Tunable experiments, those with few choices first.
_TUNABLES = (
    'tunable_lm.Tiny',
    'lm.StdlibTunable',
    'lm.StdlibFuture',
    'lm.FinetuneTunable',
    'lm.C4Tunable',
    'lm_cloud.LmCloudSpmdTestTunable',
    'nas.ElasticNas',
    'vision.DigitsTunable',
    'vision.MnistTunable',
    'nas.StdlibNas',
    'nas.StdlibKinds',
    'nas.PrimerNas',
    'nas.MixerNas',
    'vision.DigitsNas',
)


def test_tunables_are_these() -> None:
    found = {name for name in _NAMES if isinstance(registry.find(name, Experiment), Tunable)}
    assert found == set(_TUNABLES)


@pytest.mark.parametrize('name', _TUNABLES)
@pytest.mark.fast(1)
def test_every_choice_can_be_built_at_the_smoke_size(name: str) -> None:
    tunable = overrides.smoke(registry.find(name, Tunable))
    choices = [each for each in Space(tunable).spec.elements if hasattr(each, 'candidates')]
    # The last of equal choices at equal places of layers.
    for point in {(places(each), str(each.literal_values)): each for each in choices}.values():
        for index in range(len(point.candidates)):
            made = materialize_with(tunable, {point.id.path: index})
            compiled(localized(made))  # Traces the model, and compiles nothing.


def places(point: Any) -> str:
    """The path of a choice without the numbers of layers."""
    return re.sub(r'\d+', '', point.id.path)


def materialize_with(tunable: Tunable, decisions: dict[str, Any]) -> Experiment:
    """The experiment with the given decisions, and the first of the choices everywhere else."""
    space = Space(tunable)
    made = decide(
        space.spec,
        lambda point: (
            point.min_value
            if isinstance(point, pg.geno.Float)
            else [int(decisions.get(point.id.path, 0))]
        ),
    )
    return space.materialize(made)


@pytest.mark.parametrize('name', sorted({*_NAMES} - {*_RUNS, *_TUNABLES}))
def test_each_other_model_is_traced_at_its_smoke_size(name: str) -> None:
    compiled(localized(overrides.smoke(registry.find(name, Experiment))))


def test_c4_small_has_about_125_million_parameters() -> None:
    made = lm.C4Small()
    made.rebind({'train_input': StdlibInput(
        batch_size=4, is_training=True, sequence_length=32, split='train'
    )})  # fmt: skip
    program, _ = compiled(localized(made))
    assert program.num_params() == pytest.approx(127e6, rel=0.02)


def test_the_c4_space_has_its_documented_decisions() -> None:
    space = Space(lm.C4Tunable())
    paths = {path.split('.')[-1] for path in space.ids}
    assert paths == {
        'learning_rate', 'warmup_steps', 'optimizer', 'weight_decay', 'repeats', 'num_heads',
        'feed_forward',
    }  # fmt: skip


def bigram_bits(smoothing: float = 0.1) -> float:
    """Bits per byte of a smoothed byte bigram model, fitted on the train split."""
    data = {'batch_size': 1, 'sequence_length': 8}
    train = StdlibInput(split='train', is_training=True, **data).corpus().data
    held_out = StdlibInput(split='eval', **data).corpus().data
    counts = np.full((256, 256), smoothing)
    np.add.at(counts, (train[:-1], train[1:]), 1)
    chances = counts / counts.sum(axis=1, keepdims=True)
    return float(-np.log2(chances[held_out[:-1], held_out[1:]]).mean())


@pytest.mark.slow(reason='eight whole trials beat a bigram model, and one repeats to the bit')
@pytest.mark.timeout(900)
def test_a_search_beats_the_bigram_model_and_repeats_bit_for_bit(tmp_path: Path) -> None:
    """Eight trials, some stopped early, the best below a bigram model, repeatable to the bit."""
    study_dir = tmp_path / 'study'
    flags = ['--exp=lm.StdlibTunable', '--num_trials=8', f'--job_log_dir={study_dir}']
    passed(command('paxtune.search', *flags))
    with load_study(study_dir) as study:
        trials, best = study.trials, study.best
    assert len(trials) == 8
    assert all(trial.is_terminal for trial in trials)
    assert any(trial.stop_reason for trial in trials)
    assert best is not None
    assert best.reward is not None
    assert best.reward < 0.95 * bigram_bits()
    flags = [f'--study_dir={study_dir}', '--trial=best', f'--job_log_dir={tmp_path / "alone"}']
    passed(command('paxtune.train', *flags))
    assert (
        read_metrics(tmp_path / 'alone' / 'metrics.jsonl')[-1]['eval/bits_per_byte'] == best.reward
    )
