import re
from collections import Counter
from pathlib import Path

import trainer

PACKAGES = ('layers', 'learner', 'inputs', 'tasks', 'measures', 'decoding')


def test_no_name_is_exported_by_two_packages() -> None:
    root = Path(trainer.__file__).parent
    exported = Counter(
        name
        for package in PACKAGES
        for name in re.findall(r' as (\w+)$', (root / package / '__init__.py').read_text(), re.M)
    )
    assert len(exported) > 100
    assert [name for name, count in exported.items() if count > 1] == []
