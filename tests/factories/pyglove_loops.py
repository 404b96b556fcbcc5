"""Loops over `pg.sample` on a paxtune study, for tests."""

import gc

import pyglove as pg

from paxtune import pyglove_backend

SPACE = pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.oneof(['a', 'b', pg.manyof(2, [1, 2, 3])]))


def sample(algorithm, num_examples=None, space=SPACE, **kwargs):
    return pg.sample(space, algorithm, num_examples, backend='paxtune', **kwargs)


def evolution(seed=1):
    """Regularized evolution all of whose random numbers are its own."""
    mutator = pg.evolution.mutators.Uniform(seed=seed)
    return pg.evolution.regularized_evolution(mutator, 4, 2, seed=seed)


def run(algorithm, num_examples, **kwargs):
    """Runs a loop, the reward of which is x. Returns the DNAs."""
    dnas = []
    for example, feedback in sample(algorithm, num_examples, **kwargs):
        dnas.append(feedback.dna.to_numbers())
        feedback(example.x)
    return dnas


def forget():
    """Lets go of all loops, as the end of a process would."""
    pyglove_backend.forget()
    gc.collect()
    assert not pyglove_backend.forget()


def examples(loop, reward=0.0):
    for example, feedback in loop:
        feedback(reward)
        yield example
