"""Evaluation sets that go on where the last evaluation ended."""

from pathlib import Path

import pytest

from tests.factories.tiny import CountingInput, experiment
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.checkpoints.manifest import Progress
from trainer.experiment import Experiment
from trainer.loop.checkpoint_jobs import process_one
from trainer.loop.report import Interrupted
from trainer.loop.run_inputs import RunInputs
from trainer.loop.train_loop import run
from trainer.program.setup import compiled, localized
from trainer.symbolic.errors import UserError


def rolling(**overrides: object) -> Experiment:
    """A learner without updates: losses identify the batches."""
    data = CountingInput(
        batch_size=8, num_eval_batches=5, reset_for_eval=False, eval_loop_num_batches=2
    )
    return experiment(
        num_steps=6,
        eval_inputs={'rolls': data, 'whole': CountingInput(batch_size=8)},
        task__learner__learning_rate=0.0,
        **{'train__evaluation__every': 1, **overrides},
    )


def losses(made: Experiment, directory: Path, interrupt_after: int | None = None) -> list[float]:
    steps = iter(range(1, 100))
    found = []
    try:
        for measurement in run(made, directory, lambda: next(steps) == interrupt_after):
            found.append(measurement.metrics['rolls/loss'])
    except Interrupted:
        pass
    return found


def test_evaluations_do_not_overlap_until_all_is_read(tmp_path: Path) -> None:
    found = losses(rolling(), tmp_path)
    assert len(set(found[:5])) == 5
    assert found[5] == found[0]  # Five evaluations of two batches read five batches twice.


@pytest.mark.parametrize(
    ('stop_after', 'interval', 'at_once'), [(1, 1, 1), (3, 2, 1), (2, 2, 1), (2, 1, 2)]
)
@pytest.mark.fast(1)
def test_a_resumed_run_goes_on_as_the_undisturbed_one(
    stop_after: int, interval: int, at_once: int, tmp_path: Path
) -> None:
    made = rolling(train__evaluation__every=interval, train__steps_per_execution=at_once)
    whole = losses(made, tmp_path / 'whole')
    before = losses(made, tmp_path / 'parts', interrupt_after=stop_after)
    after = losses(made, tmp_path / 'parts')
    # An evaluation that was due where the run resumed is repeated, on the same batches.
    repeated = 1 if stop_after % interval == 0 else 0
    assert before + after[repeated:] == whole
    assert after[:repeated] == before[len(before) - repeated :]


def test_other_data_are_refused_by_their_path(tmp_path: Path) -> None:
    class Others(CountingInput):
        def fingerprint(self) -> str:
            return 'others'

    made = rolling()
    losses(made, tmp_path, interrupt_after=2)
    data = made.eval_inputs['rolls']
    fields = {name: data.sym_getattr(name) for name in data.sym_keys()}
    made.rebind({'eval_inputs.rolls': Others(**fields)})
    with pytest.raises(UserError, match=r'eval_inputs\.rolls: CountingInput\(…\) → Others\(…\)'):
        losses(made, tmp_path)
    # The position knows its data, too.
    losses(made, tmp_path / 'of others', interrupt_after=2)
    (tmp_path / 'of others' / 'experiment.json').replace(tmp_path / 'experiment.json')
    with pytest.raises(UserError, match=r'^eval_inputs\.rolls: the data changed'):
        losses(made, tmp_path)


def test_a_set_that_is_reset_has_no_position(tmp_path: Path) -> None:
    losses(rolling(), tmp_path / 'rolls')
    losses_of_none = experiment(num_steps=1)
    list(run(losses_of_none, tmp_path / 'resets'))
    found = []
    for name, made in (('rolls', rolling()), ('resets', losses_of_none)):
        program, _ = compiled(localized(made))
        restored = CheckpointStore(tmp_path / name / 'checkpoints').restore(program.abstract_state)
        assert restored is not None
        found.append([list(each) for each in restored.progress.eval_positions])
    assert found == [[['eval_inputs.rolls']], []]


def test_a_checkpoint_is_evaluated_on_the_batches_of_its_step(tmp_path: Path) -> None:
    found = losses(rolling(), tmp_path)
    assert found[-2] != found[-1]
    evaluated: dict[int, dict[str, float]] = {}
    process_one('eval', rolling(), str(tmp_path), evaluated.__setitem__)
    assert evaluated[6]['rolls/loss'] == found[-1]


class OfShare(CountingInput):
    """An input whose positions are valid for the shard of their process alone."""

    @property
    def positions_are_global(self) -> bool:
        return False


def test_positions_of_shards_are_refused_by_another_number_of_processes() -> None:
    made = localized(experiment(train_input=OfShare(batch_size=8, is_training=True)))
    positions = [made.train_input.get_position()] * 2
    with pytest.raises(UserError, match=r'^train_input: 2 processes, each .* wrote runs/a/5; now'):
        RunInputs(made, (1, 0)).resume(Progress(positions), 'runs/a/5')
    RunInputs(made, (2, 1)).resume(Progress(positions), 'runs/a/5')
