from paxtune.schedulers import resources
from paxtune.schedulers.base import Unit
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from paxtune.study.workload import StoredWorkload
from trainer.symbolic.errors import UserError


def max_resource(study: StudyView, trial: Trial, unit: Unit) -> float | None:
    """Computes the maximum resource of a trial, in a unit; None where it is unknown."""
    value, space = study.value, study.space
    if isinstance(value, StoredWorkload):
        return value.max_resource(space, study.trials, trial, unit)
    if not space.is_tunable:
        return None
    # Imported here: it imports JAX, and a study of a function needs none.
    from trainer.experiment import TrainLoop

    train = value.sym_getattr('train')
    if unit == 'steps' and isinstance(train, TrainLoop) and not space.sub_experiments:
        steps = train.sym_getattr('num_train_steps')
        if isinstance(steps, int):
            return float(steps)  # Making thousands of experiments takes a while.
    from paxtune.study.trial_experiments import parts_of

    try:
        return resources.max_resource(parts_of(space, trial.by_id), unit)
    except (UserError, ValueError):
        return None  # The trial will be infeasible.
