"""A training loop in flax nnx, which saves its state after each epoch."""

from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

from data import EPOCHS, X, Y


class Net(nnx.Module):
    def __init__(self, width, rngs):
        self.hidden = nnx.Linear(1, width, rngs=rngs)
        self.out = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.tanh(8 * self.hidden(x)))


@nnx.jit
def train_step(model, optimizer):
    loss, grads = nnx.value_and_grad(lambda model: ((model(X) - Y) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def fit(learning_rate, width, directory):
    checkpoint = Path(directory, 'state.npz')
    model = Net(width, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(learning_rate), wrt=nnx.Param)
    done = 0
    if checkpoint.exists():
        done, *leaves = np.load(checkpoint).values()
        structure = jax.tree.structure(nnx.state((model, optimizer)))
        nnx.update((model, optimizer), jax.tree.unflatten(structure, leaves))
    for epoch in range(int(done) + 1, EPOCHS + 1):
        for _ in range(20):
            loss = train_step(model, optimizer)
        print(f'epoch {epoch}: loss {loss:.4f}')
        written = checkpoint.with_suffix('.new.npz')
        np.savez(written, epoch, *jax.tree.leaves(nnx.state((model, optimizer))))
        written.rename(checkpoint)


if __name__ == '__main__':
    Path('runs/nnx').mkdir(parents=True, exist_ok=True)
    fit(learning_rate=0.01, width=16, directory='runs/nnx')
