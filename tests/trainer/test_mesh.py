import jax
import pytest

from trainer.errors import UserError
from trainer.mesh import Mesh, partition_spec, sharding


def test_the_rest_goes_to_the_open_axis() -> None:
    assert Mesh().shape(8) == (8, 1, 1)
    assert Mesh(data=1, fsdp=-1, tensor=2).shape(8) == (1, 4, 2)


@pytest.mark.parametrize(
    ('mesh', 'message'),
    [
        (Mesh(tensor=3), 'does not divide 8 devices'),
        (Mesh(data=2, fsdp=2, tensor=1), 'needs 4 devices, there are 8'),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh: Mesh, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mesh.shape(8)


@pytest.mark.parametrize('sizes', [{'data': -1, 'fsdp': -1}, {'data': 0}, {'tensor': -2}])
def test_impossible_sizes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match='-1'):
        Mesh(**sizes)


def test_unknown_logical_axes_are_refused() -> None:
    with pytest.raises(ValueError, match='unknown logical axes'):
        partition_spec(('embed', 'embeded'))


def test_uneven_dimensions_are_refused_with_their_name() -> None:
    mesh = jax.sharding.AbstractMesh((1, 1, 4), ('data', 'fsdp', 'tensor'))
    with pytest.raises(UserError, match=r"parameter x: axis 'mlp' of size 6"):
        sharding(mesh, ('embed', 'mlp'), (8, 6), 'parameter x')  # type: ignore[arg-type]
