"""Known values as a row of unit values."""

import math
from collections.abc import Mapping

import numpy as np

from paxtune.algorithms.base import KnownValue
from paxtune.algorithms.encoding.unit_cube import FlatSpace


def known_rows(space: FlatSpace, prior: Mapping[str, KnownValue]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the known values and their deviations [features]; NaN where no value is known."""
    values = space.encode({id_: known.value for id_, known in prior.items()})
    deviations = [
        prior[feature.id].deviation if feature.id in prior else math.nan
        for feature in space.features
    ]
    return values, np.array(deviations)
