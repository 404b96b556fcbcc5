"""Parameters of Vizier studies."""

import sys

import pyglove as pg

import paxtune
from paxtune.engines.vizier_storage import VizierStorage
from paxtune.search_space.parameters import ParameterSpec
from paxtune.service.address import Service


def number(name, low, high, scale='UNIT_LINEAR_SCALE'):
    made = ParameterSpec(parameter_id=name, scale_type=scale)
    made.double_value_spec.min_value, made.double_value_spec.max_value = low, high
    return made


def integer(name, low, high):
    made = ParameterSpec(parameter_id=name)
    made.integer_value_spec.min_value, made.integer_value_spec.max_value = low, high
    return made


def numbers(name, *values):
    made = ParameterSpec(parameter_id=name)
    made.discrete_value_spec.values.extend(values)
    return made


def choice(name, *values):
    made = ParameterSpec(parameter_id=name)
    made.categorical_value_spec.values.extend(values)
    return made


def error(values):
    for step in (1, 2, 3):
        if values.kind == 'b' and step > 1:
            raise ValueError('of the trial')
        yield {'objective': (values.x - 0.3) ** 2 / step}


def tuned(directory, where=None):
    return paxtune.tune(
        error,
        space={'x': pg.floatv(0.0, 1.0), 'kind': pg.oneof(['a', 'b'])},
        num_trials=8,
        objective='minimize',
        algorithm='regularized_evolution',
        seed=3,
        job_log_dir=directory,
        engine=None if where is None else VizierStorage(Service(where, 'mine')),
        callbacks=[],
    )


if __name__ == '__main__':
    tuned(*sys.argv[1:]).close()
