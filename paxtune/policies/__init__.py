"""Policies that stop trials early."""

from paxtune.policies.base import EarlyStopping
from paxtune.policies.by_median import MedianStopping
from paxtune.policies.by_rank import ByRank
from paxtune.policies.by_value import ByValue

__all__ = ['ByRank', 'ByValue', 'EarlyStopping', 'MedianStopping']
