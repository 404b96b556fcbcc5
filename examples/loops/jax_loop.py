"""A training loop in plain JAX, which saves its state after each epoch."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from data import EPOCHS, X, Y


def init(width):
    rng = np.random.default_rng(seed=0)
    shapes = {'in': (1, width), 'bias': (width,), 'out': (width, 1)}
    return {name: np.float32(rng.normal(0, 1, shape)) for name, shape in shapes.items()}


def loss_of(params):
    hidden = jnp.tanh(X @ params['in'] * 4 + params['bias'])
    return jnp.mean((hidden @ params['out'] / 8 - Y) ** 2)


@jax.jit
def train_epoch(params, learning_rate):
    def step(params, _):
        grads = jax.grad(loss_of)(params)
        return jax.tree.map(lambda value, grad: value - learning_rate * grad, params, grads), None

    params, _ = jax.lax.scan(step, params, length=100)
    return params, loss_of(params)


def save(path, params, epoch):
    written = path.with_suffix('.new.npz')
    np.savez(written, epoch=epoch, **params)
    written.rename(path)


def fit(learning_rate, width, directory):
    checkpoint = Path(directory, 'state.npz')
    params, done = init(width), 0
    if checkpoint.exists():
        params = dict(np.load(checkpoint))
        done = int(params.pop('epoch'))
    for epoch in range(done + 1, EPOCHS + 1):
        params, loss = train_epoch(params, learning_rate)
        print(f'epoch {epoch}: loss {loss:.4f}')
        save(checkpoint, params, epoch)


if __name__ == '__main__':
    Path('runs/jax').mkdir(parents=True, exist_ok=True)
    fit(learning_rate=0.1, width=16, directory='runs/jax')
