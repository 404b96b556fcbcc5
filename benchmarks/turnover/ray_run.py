"""One run of Ray Tune: `python -m benchmarks.turnover.ray_run SETTING FOLDER`."""

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.turnover import setting as fixed
from benchmarks.turnover.setting import Setting


def trainable(numbers: dict[str, Any], text: str, path: str) -> None:
    """Trains one trial in a process of Ray."""
    import jax
    from ray import tune

    from benchmarks.turnover import flax_loop

    setting, folder = Setting.from_json(text), Path(path)
    if setting.is_best_practice:
        jax.config.update('jax_compilation_cache_dir', str(folder.parent / 'ray_cache'))
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)

    def report(step: int, loss: float) -> bool:
        tune.report({'loss': loss, 'step': step})
        return False

    flax_loop.train(setting, folder, numbers, report)


def main() -> None:
    import ray
    from ray import tune
    from ray.tune.search import BasicVariantGenerator

    setting, folder = Setting.from_json(sys.argv[1]), Path(sys.argv[2])
    given = {'text': setting.to_json(), 'path': str(folder)}
    scheduler = None
    if setting.prunes:
        scheduler = tune.schedulers.ASHAScheduler(
            time_attr='step', max_t=setting.steps, grace_period=setting.every, reduction_factor=3
        )
    target = setting.target

    class AtTarget(tune.Stopper):
        is_reached = False

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            self.is_reached |= target is not None and result['loss'] <= target
            return self.is_reached

        def stop_all(self) -> bool:
            return self.is_reached

    # The trial that runs has the machine for itself, as with the other tuners.
    cores = os.cpu_count() or 1
    draws = BasicVariantGenerator(max_concurrent=1, random_state=setting.seed)
    ray.init(num_cpus=cores, include_dashboard=False)
    tune.Tuner(
        tune.with_resources(tune.with_parameters(trainable, **given), {'cpu': cores}),
        param_space={
            'learning_rate': tune.loguniform(*fixed.RATES),
            'weight_decay': tune.loguniform(*fixed.DECAYS),
            'warmup_steps': tune.choice(fixed.WARMUPS),
        },
        tune_config=tune.TuneConfig(
            metric='loss',
            mode='min',
            num_samples=setting.trials,
            search_alg=draws,
            reuse_actors=setting.is_best_practice,
            scheduler=scheduler,
        ),
        run_config=tune.RunConfig(storage_path=str(folder / 'ray'), stop=AtTarget()),
    ).fit()


if __name__ == '__main__':
    main()
