"""The names of classes in flags."""

import re

_WORD_BEGINS = re.compile(r'(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])')


def flag_name(class_name: str) -> str:
    """Returns the name of a class in flags.

    Example:
        >>> flag_name('GPBandit'), flag_name('NSGA2'), flag_name('RandomSearch')
        ('gp_bandit', 'nsga2', 'random_search')
    """
    return _WORD_BEGINS.sub('_', class_name).lower()
