"""A training loop with optax, which saves its state after each epoch."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data import EPOCHS, X, Y

OPTIMIZERS = {'adam': optax.adam, 'sgd': optax.sgd}


def init(width=32):
    rng = np.random.default_rng(seed=0)
    shapes = {'in': (1, width), 'bias': (width,), 'out': (width, 1)}
    return {name: np.float32(rng.normal(0, 1, shape)) for name, shape in shapes.items()}


def loss_of(params):
    hidden = jnp.tanh(X @ params['in'] * 4 + params['bias'])
    return jnp.mean((hidden @ params['out'] / 8 - Y) ** 2)


def fit(learning_rate, optimizer, directory):
    checkpoint = Path(directory, 'state.npz')
    rule = OPTIMIZERS[optimizer](learning_rate)
    params = init()
    state, done = (params, rule.init(params)), 0
    if checkpoint.exists():
        done, *leaves = np.load(checkpoint).values()
        state = jax.tree.unflatten(jax.tree.structure(state), leaves)

    def step(state, _):
        params, memory = state
        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, memory = rule.update(grads, memory)
        return (optax.apply_updates(params, updates), memory), loss

    train_epoch = jax.jit(lambda state: jax.lax.scan(step, state, length=100))
    for epoch in range(int(done) + 1, EPOCHS + 1):
        state, losses = train_epoch(state)
        print(f'epoch {epoch}: loss {losses[-1]:.4f}')
        np.savez(checkpoint.with_suffix('.new.npz'), epoch, *jax.tree.leaves(state))
        checkpoint.with_suffix('.new.npz').rename(checkpoint)


if __name__ == '__main__':
    Path('runs/optax').mkdir(parents=True, exist_ok=True)
    fit(learning_rate=0.01, optimizer='adam', directory='runs/optax')
