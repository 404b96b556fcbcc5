"""What stands between an experiment and its first step: its data, its devices, its program."""

import jax

from trainer.errors import UserError
from trainer.experiment import Experiment
from trainer.inputs.base import Input
from trainer.program import Program, Values, program_for


def localized(experiment: Experiment) -> Experiment:
    """A deep copy whose inputs know this host's share of the data."""
    experiment = experiment.clone(deep=True)
    hosts = {'num_infeed_hosts': jax.process_count(), 'infeed_host_index': jax.process_index()}
    for data in (experiment.train_input, *experiment.eval_inputs.values()):
        if data.num_infeed_hosts == 0:
            data.rebind(hosts)
    return experiment


def concrete_inputs(experiment: Experiment) -> dict[str, Input]:
    """The inputs by their path, as far as every decision in them is made."""
    inputs: dict[str, Input] = {'train_input': experiment.train_input}
    inputs |= {f'eval_inputs.{name}': data for name, data in experiment.eval_inputs.items()}
    return {path: data for path, data in inputs.items() if not data.sym_puresymbolic}


def prepare_inputs(experiment: Experiment) -> None:
    """Checks that the data is there.

    Raises:
        UserError: it is not; the message begins with the input's path.
    """
    for path, data in concrete_inputs(experiment).items():
        try:
            data.prepare()
        except UserError as error:
            raise UserError(f'{path}: {error}') from error


def compiled(experiment: Experiment) -> tuple[Program, Values]:
    """The program of an experiment on its mesh, and the numbers to run it with.

    Raises:
        UserError: the mesh does not fit the devices, or the model does not fit the mesh.
    """
    try:
        mesh = experiment.mesh.make()
    except ValueError as error:
        raise UserError(f'mesh: {error}') from error
    program = program_for(experiment.task, mesh, experiment.train_input.element_spec())
    return program, program.values(experiment.task)
