"""Tuning a function, for a training loop of your own.

    python -m examples.bare_function

24 trials take 20 seconds on two cores, nearly half of them stopped early; the best reaches a mean
squared error of about 0.0001.
"""

import argparse
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pyglove as pg

from paxtune import Budget, MedianStopping, MetricReward, Search, SkipTrial, Study, intv, tune
from paxtune.storage.open_study import open_study

SPACE = {
    'width': intv(4, 64, 'log'),
    'optimizer': pg.oneof(['adam', 'sgd']),
    'learning_rate': pg.floatv(1e-3, 0.3, 'log'),
}
OPTIMIZERS = {'adam': optax.adam, 'sgd': optax.sgd}


def train(values: pg.Dict, num_epochs: int = 30) -> Iterator[dict[str, float]]:
    """Fits a sine with a small network. Each yield is a measurement, where it may be stopped."""
    x = np.linspace(-1, 1, 256)[:, None]
    y = np.sin(8 * x)
    rng = np.random.default_rng(seed=0)
    params = {
        'slopes': rng.normal(0, 4, size=(1, values.width)),
        'offsets': rng.normal(0, 4, size=values.width),
        'out': np.zeros((values.width, 1)),
    }
    optimizer = OPTIMIZERS[values.optimizer](values.learning_rate)
    params = jax.tree.map(jnp.float32, params)
    state = jax.jit(optimizer.init)(params)

    def loss(params):
        hidden = jnp.tanh(x @ params['slopes'] + params['offsets'])
        return jnp.mean((hidden @ params['out'] - y) ** 2)

    def step(carry, _):
        params, state = carry
        error, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), error

    epoch = jax.jit(lambda carry: jax.lax.scan(step, carry, length=50))
    for _ in range(num_epochs):
        (params, state), errors = epoch((params, state))
        error = float(errors[-1])
        if not error < 1e6:
            # Infeasible: the algorithm sees no reward.
            raise SkipTrial('the loss diverged')
        yield {'error': error, 'parameters': 3 * values.width}


def search(num_trials: int, num_epochs: int = 30, job_log_dir: str | None = None) -> Study:
    """Tunes with `tune`. Without a directory the study is in memory."""
    return tune(
        lambda values: train(values, num_epochs),
        space=SPACE,
        num_trials=num_trials,
        objective=MetricReward('minimize', 'error'),
        scheduler=MedianStopping(warmup_steps=3),
        # This network takes a hundred times the usual learning rate.
        prior=None,
        job_log_dir=job_log_dir,
    )


def ask_and_tell(num_trials: int, num_epochs: int = 30) -> Study:
    """Tunes with a loop of your own over the trials."""
    how = Search(MetricReward('minimize', 'error'), Budget(num_trials))
    study = open_study(None, pg.Dict(SPACE), search=how)
    while (trial := study.ask()) is not None:
        try:
            *_, last = train(trial.materialize(), num_epochs)
        except SkipTrial as signal:
            study.tell(trial, infeasible=signal.reason)
        else:
            study.tell(trial, last)
    return study


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument('--num_trials', type=int, default=24)
    flags.add_argument('--num_epochs', type=int, default=30)
    args = flags.parse_args()
    with search(args.num_trials, args.num_epochs) as study:
        outcomes = [trial.status for trial in study.trials]
        for outcome in sorted({*outcomes}):
            print(f'{outcome}: {outcomes.count(outcome)} trials')
        if study.best is not None:
            print(f'trial {study.best.id}: error={study.best.reward:.6f} {study.best.decisions}')


if __name__ == '__main__':
    main()
