from typing import Any

import jax
import pytest

from tests.factories.tiny import experiment
from trainer.inspect import layout, validate
from trainer.layers import Layer
from trainer.mesh import Arrangement, Mesh
from trainer.symbolic.errors import UserError


@pytest.mark.pax('… axes: replica', 'inputs_split_mapping')
def test_each_axis_divides_its_part_of_arrays_and_batches() -> None:
    each = ('data', 'fsdp', 'sequence', 'tensor', 'expert', 'stage')
    there = Mesh(**dict.fromkeys(each, 2)).abstract()
    assert tuple(there.spec('layers', 'embed', 'mlp')) == ('stage', 'fsdp', 'tensor')
    assert tuple(there.spec('experts', 'heads', 'vocab')) == ('expert', 'tensor', 'tensor')
    assert tuple(there.feature_spec(2)) == (('data', 'fsdp', 'expert'), 'sequence')
    whole = Mesh(data=2, sequence=2, rules={'length': None}).abstract()
    assert tuple(whole.feature_spec(2)) == (('data', 'fsdp'), None)


@pytest.mark.pax('ici_mesh_shape')
def test_the_rest_goes_to_the_open_axis() -> None:
    assert Mesh().shape(8) == (8, 1, 1, 1)
    assert Mesh(data=1, fsdp=-1, tensor=2).shape(8) == (1, 4, 1, 2)
    assert Mesh(data=1, sequence=-1).shape(8) == (1, 1, 8, 1)


@pytest.mark.pax('ici_mesh_shape')
def test_axes_are_within_a_slice_and_between_slices() -> None:
    # The multislice configuration of Pax: ICI [1, 64, 1], DCN [2, 1, 1].
    mesh = Mesh(data=1, fsdp=64, dcn_data=2)
    assert (mesh.ici_mesh_shape, mesh.dcn_mesh_shape) == ([1, 64, 1, 1], [2, 1, 1, 1])
    assert mesh.min_devices() == 128
    assert mesh.shapes(128) == ((1, 64, 1, 1), (2, 1, 1, 1))
    assert mesh.shape(128, num_slices=2) == (2, 64, 1, 1)
    assert Mesh(fsdp=4, dcn_fsdp=2).shape(16) == (2, 8, 1, 1)


def test_slices_go_to_the_open_axis() -> None:
    assert Mesh(data=1, fsdp=-1).shape(8, num_slices=2) == (2, 4, 1, 1)
    assert Mesh(data=1, fsdp=4, dcn_data=1, dcn_fsdp=-1).shape(8, num_slices=2) == (1, 8, 1, 1)
    assert Mesh(data=1, fsdp=2, dcn_fsdp=2).shape(8, num_slices=4) == (2, 4, 1, 1)


@pytest.mark.parametrize(
    ('mesh', 'num_slices', 'message'),
    [
        (Mesh(tensor=3), 1, 'does not divide 8 devices'),
        (Mesh(data=2, fsdp=2), 1, 'needs 4 devices, there are 8'),
        (Mesh(data=2), 2, 'needs 2 devices in a slice, there are 4'),
        (Mesh(dcn_data=2), 1, 'dcn_data=2 .* needs 2 slices, there are 1'),
        (Mesh(dcn_fsdp=2), 3, 'does not divide 3 slices'),
        (Mesh(), 3, '8 devices are not 3 slices'),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh: Mesh, num_slices: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mesh.shape(8, num_slices)


@pytest.mark.parametrize(
    'sizes',
    [
        {'data': -1, 'fsdp': -1},
        {'data': 0},
        {'tensor': -2},
        {'dcn_data': -1, 'dcn_tensor': -1},
        {'dcn_sequence': 0},
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match='-1'):
        Mesh(**sizes)


def test_stages_experts_and_own_axes_are_there_where_they_are_set() -> None:
    mesh = Mesh(data=1, expert=2, axes={'mine': -1}, dcn_axes={'mine': 2}, dcn_stage=2, dcn_data=1)
    assert mesh.axis_names == ('stage', 'data', 'fsdp', 'expert', 'sequence', 'tensor', 'mine')
    assert mesh.min_devices() == 8
    assert mesh.shape(32) == (2, 1, 1, 2, 1, 1, 8)
    assert Mesh(expert=1).axis_names == ('data', 'fsdp', 'sequence', 'tensor')


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'axes': {'expert': 2}}, r'^axes.expert: set the field expert of the mesh'),
        ({'axes': {'': 2}}, r"^axes: '' is no name of an axis"),
        ({'axes': {'mine': 0}}, r'^axes.mine must be at least 1, or -1'),
        ({'dcn_axes': {'mine': 2}}, r"^dcn_axes.mine: axes has no 'mine'"),
        ({'rules': {'a': 'tensr'}}, r"^rules.a: the mesh has no axis 'tensr', .* mean tensor\?"),
        ({'rules': {'a': ['data', 'data']}}, r'^rules.a: an axis is there twice: data, data'),
        (
            {'rules': {'batch': ['data', 'sequence']}},
            r"^rules: the axis 'sequence' would divide both 'batch' and 'length'",
        ),
    ],
)
def test_unfit_axes_and_rules_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mesh(**fields)


@pytest.mark.pax('A partitioner of')
def test_rules_of_an_experiment_add_to_the_built_in_ones_and_replace_them() -> None:
    mesh = Mesh(data=2, expert=2, axes={'mine': 2}, rules={'rows': 'mine', 'embed': None})
    there = mesh.abstract()
    assert tuple(there.spec('rows', 'embed', 'mlp', None)) == ('mine', None, 'tensor', None)
    assert tuple(there.spec('experts', 'batch')) == ('expert', ('data', 'fsdp', 'expert'))
    assert there.parts('batch') == (4, ('data', 'fsdp', 'expert'))
    plain = Mesh(data=2).abstract()
    assert tuple(plain.spec('experts', 'layers', 'embed')) == (None, None, 'fsdp')
    assert plain.parts('batch') == (2, ('data', 'fsdp'))
    assert (there == mesh.abstract(), there == plain) == (True, False)
    assert Mesh(data=2, rules={'embed': None}).abstract() != plain


class Rows(Layer):
    """Multiplies by a matrix whose axis has a name that a test chooses."""

    axis: str = 'rows'
    activation: str = 'features'

    def forward(self, x: jax.Array, *_: Any) -> jax.Array:
        shape, ones = (x.shape[-1],) * 2, jax.nn.initializers.ones
        kernel = self.param('kernel', shape, (None, self.axis), ones)
        return self.constrain(x @ kernel, ('batch', 'length', self.activation))


@pytest.mark.parametrize(
    ('layer', 'mesh', 'message'),
    [
        (
            Rows(),
            {'data': 1},
            r"^parameter stack.layers_0.kernel: there is no rule for the logical axis 'rows', "
            r"such as mesh.rules={'rows': None}. .*There are batch, ",
        ),
        (
            Rows(),
            {'data': 1, 'axes': {'mine': 3}, 'rules': {'rows': 'mine'}},
            r"^parameter stack.layers_0.kernel: axis 'rows' of size 16 .* 3 devices of mesh.mine",
        ),
        (
            Rows('experts'),
            {'data': 1, 'expert': 5},
            r"axis 'experts' of size 16 does not divide evenly over the 5 devices of mesh.expert",
        ),
        (
            Rows('features', 'featurs'),
            {'data': 1},
            r'an activation of Rows at .*stack.layers\[0\].*Did you mean features\?',
        ),
    ],
)
def test_axes_that_do_not_fit_are_refused_with_their_layer(
    layer: Layer, mesh: Any, message: str
) -> None:
    made = experiment(task__model__stack__layers=[layer], mesh=Mesh(**mesh))
    with pytest.raises(UserError, match=message):
        validate(made, layout(made))


def test_a_mesh_axis_divides_one_axis_of_an_array() -> None:
    with pytest.raises(UserError, match=r"^x: .*'tensor' would divide both 'mlp' and 'heads'"):
        _abstract(tensor=2).sharding(('mlp', 'heads'), (2, 2), 'x')
    with pytest.raises(UserError, match=r'^x: 1 logical axes for 2 dimensions'):
        _abstract(tensor=2).sharding(('mlp',), (2, 2), 'x')


@pytest.mark.pax('… uneven shards')
def test_uneven_dimensions_are_refused_with_their_name() -> None:
    with pytest.raises(
        UserError, match=r"parameter x: axis 'mlp' of size 6 .* mesh.tensor; choose"
    ):
        _abstract(tensor=4).sharding(('embed', 'mlp'), (8, 6), 'parameter x')
    with pytest.raises(UserError, match=r'6 devices of mesh.data × mesh.fsdp'):
        _abstract(data=2, fsdp=3).sharding(('batch',), (8,), 'x')


def test_positions_that_do_not_divide_evenly_are_whole() -> None:
    axes = ('batch', 'length', 'features')
    there = _abstract(data=2, sequence=2)
    for length, wanted in ((6, 'sequence'), (1, None)):
        at = there.activation_sharding(axes, (4, length, 8), 'x')
        assert at.spec[1] == wanted
    with pytest.raises(UserError, match="axis 'batch' of size 3"):
        there.activation_sharding(axes, (3, 1, 8), 'x')


def _abstract(**sizes: int) -> Arrangement:
    return Mesh(**{'data': 1, **sizes}).abstract()
