"""Parameters of Vizier studies."""

from paxtune.search_space.parameters import ParameterSpec


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
