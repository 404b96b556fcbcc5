"""Direct preference optimization: its loss, its reference, and its training."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.runs import (
    final_state,
    measured,
    resumed_after_an_interruption,
    without_speed,
)
from tests.factories.tiny import LENGTH, VOCAB, experiment, model
from tests.servers.processes import on_devices
from trainer.experiment import Experiment
from trainer.inputs import Arrays, ArraysInput, arrays_of
from trainer.inspect import layout
from trainer.layers import LoRA
from trainer.learner import Learner, TrainOnly
from trainer.metrics import Metrics
from trainer.program.costs import static_costs
from trainer.program.setup import compiled, localized
from trainer.symbolic.errors import UserError
from trainer.tasks import PreferenceTask


class PairsInput(ArraysInput):
    """Answers that count upwards are chosen, and those that count downwards rejected."""

    seed: int = 0
    part: str = 'rejected'

    def read(self) -> Arrays:
        first = np.random.default_rng(self.seed).integers(0, VOCAB, (24, 1))
        steps = np.arange(LENGTH + 1)
        weights = (np.arange(LENGTH) >= 2) * np.ones((24, 1), np.float32)
        found: dict[str, np.ndarray] = {}
        for part, sign in (('chosen', 1), (self.part, -1)):
            tokens = (first + sign * np.maximum(steps - 2, 0)) % VOCAB
            found |= {f'{part}.ids': tokens[:, :-1], f'{part}.labels': tokens[:, 1:]}
            found[f'{part}.weights'] = weights
        return arrays_of(found)


def task(**fields: Any) -> PreferenceTask:
    return PreferenceTask(model(), fields.pop('learner', Learner(0.01)), **fields)


def run_of(num_steps: int = 6, **overrides: Any) -> Experiment:
    inputs = {
        'train_input': PairsInput(batch_size=8, is_training=True),
        'eval_inputs.eval': PairsInput(batch_size=8, seed=1),
    }
    return experiment(num_steps, **{'task': task(), **inputs, **overrides})


# The model gives the chosen token 0.8 and the rejected one 0.2; the reference 0.5 and 0.4.
CHOSEN_RATIO, REJECTED_RATIO = math.log(0.8 / 0.5), math.log(0.2 / 0.4)


def of_one_pair(beta: float = 0.5, **fields: Any) -> dict[str, float]:
    """The metrics of a pair of answers of one and of two tokens, and of a pair of padding."""
    made = task(beta=beta, **fields)

    def logits(chosen: float, rejected: float) -> jax.Array:
        rest = (1 - chosen - rejected) / (VOCAB - 2)
        row = jnp.log(jnp.full(VOCAB, max(rest, 1e-30)).at[1].set(chosen).at[2].set(rejected))
        return jnp.broadcast_to(row, (4, 2, VOCAB))

    weights = {'chosen': [[0, 1], [0, 0]], 'rejected': [[1, 1], [0, 0]]}
    batch: dict[str, Any] = {'reference': logits(0.5, 0.4)}
    for number, part in enumerate(weights, 1):
        batch[f'{part}.ids'] = jnp.zeros((2, 2), jnp.int32)
        batch[f'{part}.labels'] = jnp.full((2, 2), number)
        batch[f'{part}.weights'] = jnp.array(weights[part], jnp.float32)
    found: Metrics = jax.device_get(made.measure(logits(0.8, 0.2), batch))
    return {name: metric.value() for name, metric in found.items()}


@pytest.mark.pax('Preference optimization (DPO)')
def test_loss_is_that_of_a_pair_by_hand() -> None:
    found = of_one_pair()
    margin = 0.5 * (CHOSEN_RATIO - 2 * REJECTED_RATIO)
    assert found['loss'] == pytest.approx(math.log(1 + math.exp(-margin)), rel=1e-5)
    assert found['reward_chosen'] == pytest.approx(0.5 * CHOSEN_RATIO, rel=1e-5)
    assert found['reward_rejected'] == pytest.approx(REJECTED_RATIO, rel=1e-5)
    assert found['reward_margin'] == pytest.approx(margin, rel=1e-5)
    assert (found['preference_accuracy'], found['num_pairs']) == (1, 1)
    drift = (CHOSEN_RATIO**2 + 2 * REJECTED_RATIO**2) / 3 / 2
    assert found['drift'] == pytest.approx(drift, rel=1e-5)
    assert found['log_pplx'] == pytest.approx(-math.log(0.8), rel=1e-5)


def test_smoothing_adds_the_loss_of_the_pair_the_other_way_round() -> None:
    margin = 0.5 * (CHOSEN_RATIO - 2 * REJECTED_RATIO)
    right, wrong = math.log(1 + math.exp(-margin)), math.log(1 + math.exp(margin))
    found = of_one_pair(label_smoothing=0.1)
    assert found['loss'] == pytest.approx(0.9 * right + 0.1 * wrong, rel=1e-5)


def test_ipo_is_a_squared_distance_of_mean_log_ratios() -> None:
    expected = (CHOSEN_RATIO - REJECTED_RATIO - 1 / (2 * 0.5)) ** 2
    assert of_one_pair(form='ipo')['loss'] == pytest.approx(expected, rel=1e-5)


def test_supervised_weight_adds_the_loss_of_the_chosen_answer() -> None:
    more = of_one_pair(supervised_weight=2.0)['loss'] - of_one_pair()['loss']
    assert more == pytest.approx(-2 * math.log(0.8), rel=1e-5)


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, float]]]:
    directory = tmp_path_factory.mktemp('preference')
    return directory, [without_speed(each) for each in measured(run_of(), directory)]


def test_training_raises_the_accuracy_on_held_out_pairs(
    trained: tuple[Path, list[dict[str, float]]],
) -> None:
    first, *_, last = trained[1]
    assert last['eval/preference_accuracy'] > 0.9
    assert last['eval/loss'] < first['eval/loss'] < math.log(2)
    assert last['eval/reward_margin'] > 0 and last['eval/drift'] > 0


def test_reference_stays_as_the_run_began(
    trained: tuple[Path, list[dict[str, float]]],
) -> None:
    made = run_of()
    state = final_state(made, trained[0])
    program, values = compiled(localized(made))
    start = jax.device_get(program.init(program.random_key(made.train.random_seed), values))
    jax.tree.map(np.testing.assert_array_equal, state.reference_params, start.params)
    jax.tree.map(np.testing.assert_array_equal, start.reference_params, start.params)
    changed = jax.tree.map(lambda x, y: (x != y).any(), state.params, start.params)
    assert all(jax.tree.leaves(changed))


def test_an_interrupted_run_resumes_bit_for_bit(
    trained: tuple[Path, list[dict[str, float]]], tmp_path: Path
) -> None:
    found = resumed_after_an_interruption(run_of(), tmp_path)
    assert without_speed(found[-1]) == trained[1][-1]


def test_reference_has_copies_of_trained_parameters_alone() -> None:
    some = Learner(0.01, freeze=TrainOnly([r'embedding\.table']))
    of_some, of_all = (layout(run_of(**{'task.learner': each})) for each in (some, Learner(0.01)))
    assert of_some.reference_bytes == 4 * VOCAB * 16
    assert of_all.reference_bytes == of_all.gradient_bytes
    plain = layout(experiment())
    assert plain.reference_bytes == 0
    assert of_all.state_bytes - plain.state_bytes == of_all.reference_bytes


def test_reference_of_a_model_with_adapters_is_the_model_without_them(tmp_path: Path) -> None:
    adapted = task(adapters=LoRA(rank=2, targets=[r'.*query', r'.*up', r'.*down']))
    made = run_of(task=adapted)
    assert layout(made).reference_bytes == 0
    reports = measured(made, tmp_path)
    assert reports[-1].metrics['eval/preference_accuracy'] > 0.5
    assert reports[-1].metrics['eval/drift'] > reports[0].metrics['eval/drift'] > 0


def test_cost_of_a_token_has_one_pass_of_the_reference() -> None:
    # Four passes, not the three of training without a reference.
    ratio = (
        static_costs(run_of())['flops_per_token'] / static_costs(experiment())['flops_per_token']
    )
    assert 1.2 < ratio < 1.4


def test_sets_without_pairs_are_measured_as_language_models(tmp_path: Path) -> None:
    plain = experiment(2).eval_inputs['eval'].clone(deep=True)
    made = run_of(2, **{'eval_inputs.answers': plain})
    found = measured(made, tmp_path)[-1].metrics
    assert found['answers/log_pplx'] > 0 and 'answers/reward_margin' not in found


_ON_MESHES = """
import json
import jax
import numpy as np
from tests.trainer.tasks.test_preference import run_of
from trainer.mesh import Mesh
from trainer.program.program import program_for
from trainer.program.setup import localized

made = localized(run_of())
batches = [made.train_input.get_next() for _ in range(3)]
losses = []
for mesh in (Mesh(data=1).make(jax.devices()[:1]), Mesh(data=2, fsdp=2, tensor=2).make()):
    program = program_for(made.task, mesh, made.train_input.element_spec())
    values, key = program.values(made.task), program.random_key(0)
    state = program.init(key, values)
    assert all(
        x.sharding == y.sharding
        for x, y in zip(*map(jax.tree.leaves, (state.reference_params, state.params)), strict=True)
    )
    for batch in batches:
        state, metrics = program.train_step(state, program.put(batch), key, values)
        losses.append(float(metrics['loss'].total))
print(json.dumps(losses))
"""


@pytest.mark.slow
def test_losses_are_equal_on_eight_devices() -> None:
    losses = json.loads(on_devices(_ON_MESHES).splitlines()[-1])
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-4)
    assert losses[2] < losses[0]


@pytest.mark.parametrize(
    'overrides, message',
    [
        ({'train_input': experiment().train_input}, 'have no pairs'),
        ({'train_input.part': 'other'}, 'have no rejected.ids, rejected.labels'),
    ],
)
def test_inputs_without_pairs_are_refused(
    overrides: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as found:
        measured(run_of(**overrides), tmp_path / 'run')
    assert 'train_input' in str(found.value)
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'beta': 0.0}, 'beta'),
        ({'label_smoothing': 0.5}, 'label_smoothing must be below 0.5'),
        ({'label_smoothing': 0.1, 'form': 'ipo'}, "must be 0 with form 'ipo'"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task(**fields).check()
