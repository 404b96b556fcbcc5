"""One run of Optuna: `python -m benchmarks.turnover.optuna_run SETTING FOLDER`."""

import sys
from pathlib import Path
from typing import Any

from benchmarks.turnover import setting as fixed
from benchmarks.turnover.setting import Setting


def main() -> None:
    import jax
    import optuna

    from benchmarks.turnover import flax_loop

    setting, folder = Setting.from_json(sys.argv[1]), Path(sys.argv[2])
    if setting.is_best_practice:
        jax.config.update('jax_compilation_cache_dir', str(folder.parent / 'optuna_cache'))
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)

    def objective(trial: Any) -> float:
        numbers = {
            'learning_rate': trial.suggest_float('learning_rate', *fixed.RATES, log=True),
            'weight_decay': trial.suggest_float('weight_decay', *fixed.DECAYS, log=True),
            'warmup_steps': trial.suggest_categorical('warmup_steps', fixed.WARMUPS),
        }

        def report(step: int, loss: float) -> bool:
            trial.report(loss, step)
            if setting.target is not None and loss <= setting.target:
                trial.study.stop()
                return True
            return setting.prunes and step < setting.steps and trial.should_prune()

        loss = flax_loop.train(setting, folder, numbers, report)
        last_step = trial.study._storage.get_trial(trial._trial_id).last_step
        is_target = setting.target is not None and loss <= setting.target
        if last_step < setting.steps and not is_target:
            raise optuna.TrialPruned
        return loss

    sampler: Any = optuna.samplers.TPESampler(seed=setting.seed)
    if setting.search == 'random':
        sampler = optuna.samplers.RandomSampler(seed=setting.seed)
    pruner: Any = optuna.pruners.NopPruner()
    if setting.prunes:
        pruner = optuna.pruners.HyperbandPruner(setting.every, setting.steps, reduction_factor=3)
    study = optuna.create_study(direction='minimize', sampler=sampler, pruner=pruner)
    study.optimize(objective, n_trials=setting.trials)


if __name__ == '__main__':
    main()
