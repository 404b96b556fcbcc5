"""Names of parameters and parts of trees."""

from typing import Any

import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from hypothesis import given
from hypothesis import strategies as st

from trainer.layers.stack import per_layer
from trainer.learner.paths import leaves, matching, names, replaced, scan_lengths, select, subtree
from trainer.symbolic.errors import UserError

_KEYS = st.sampled_from(['embedding', 'stack', 'layers_0', 'layers_1x2', 'kernel', 'scale'])
_TREES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(_KEYS, inner, min_size=1, max_size=3)
)
TREES = st.dictionaries(_KEYS, _TREES, min_size=1, max_size=3)


@given(tree=TREES, data=st.data())
def test_parts_make_up_the_whole(tree: Any, data: st.DataObject) -> None:
    paths = sorted(leaves(tree))
    some = set(data.draw(st.lists(st.sampled_from(paths), unique=True)))
    part, rest = select(tree, some), select(tree, set(paths) - some)
    assert leaves(part).keys() == some
    assert leaves(part) | leaves(rest) == leaves(tree)
    assert subtree(tree, part) == part
    blank = unflatten_dict(dict.fromkeys(paths))
    assert replaced(replaced(blank, part), rest) == tree
    assert leaves(replaced(blank, part)) == dict.fromkeys(paths) | leaves(part)


@given(tree=TREES)
def test_a_stored_parameter_has_a_name_for_each_layer(tree: Any) -> None:
    for path in leaves(tree):
        count = 1
        for length in scan_lengths(path):
            count *= length
        assert len(set(names(path))) == len(names(path)) == count


def test_names_are_those_of_the_per_layer_view() -> None:
    stored = {'layers_1x2': {'layers_0x3': {'scale': np.arange(6).reshape(2, 3)}}}
    (path,) = leaves(stored)
    apart = leaves(per_layer(stored))
    assert names(path) == ['.'.join(each) for each in apart]
    assert [int(leaf) for leaf in apart.values()] == list(range(6))


def test_a_pattern_matches_whole_names() -> None:
    tree = {'a': {'b': 1, 'bc': 2}, 'stack': {'layers_0x2': {'b': 3}}}
    assert matching(['a.b'], tree, 'field') == {('a', 'b')}
    assert matching([r'.*\.b'], tree, 'field') == {('a', 'b'), ('stack', 'layers_0x2', 'b')}
    assert matching(['.*_0.b', '.*_1.b'], tree, 'field') == {('stack', 'layers_0x2', 'b')}
    with pytest.raises(UserError, match=r"^field\[1\]: .* try 'stack.\*'"):
        matching(['a.b', 'stack'], tree, 'field')
    with pytest.raises(UserError, match=r'^field: it matches stack.layers_0.b but not stack.lay'):
        matching(['a.b', '.*_0.b'], tree, 'field')
