import jax.numpy as jnp
import numpy as np

from trainer.checkpoints.checksums import checksums


def test_small_arrays_have_the_checksums_that_xla_computes() -> None:
    drawn = np.random.default_rng(0).normal(size=(3, 5, 7))
    small = {
        'float32': jnp.asarray(drawn, jnp.float32),
        'bfloat16': jnp.asarray(drawn, jnp.bfloat16),
        'int8': jnp.asarray(10 * drawn, jnp.int8),
        'bool': jnp.asarray(drawn > 0),
        'step': jnp.int32(-7),
    }
    # A state of more than a million words is summed by XLA.
    of_xla = checksums({**small, 'large': jnp.zeros(2**20)})
    assert checksums(small).items() <= of_xla.items()
    assert len(set(of_xla.values())) == len(of_xla)
