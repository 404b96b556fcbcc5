"""Names of other tuners for the arguments of `paxtune.tune` and the flags of a search."""

_TRIALS = ('num_trials=20', '--num_trials=20')
_GOAL = ("objective='minimize'", '--metric=eval/loss --goal=minimize')
_HOURS = ('budget=paxtune.Budget(hours=1.0)', '--max_hours=1')
_WORKERS = ('workers=2', '--workers=2')
_SCHEDULER = ("scheduler='median'", '--scheduler=median')
_ALGORITHM = ("algorithm='tpe'", '--algorithm=tpe')
_DIRECTORY = ("job_log_dir='runs/mine'", '--job_log_dir=runs/mine')
_SPACE = ("space={'x': pg.floatv(0.0, 1.0)}", "--tune 'path=floatv(0.0, 1.0)'")
_SEED = ('seed=1', '--seed=1')
_SILENT = ('callbacks=[]', '')

_NAMES = {
    _TRIALS: 'n_trials max_trials trials num_samples n_iter max_evals iterations',
    _GOAL: 'direction directions mode goal metric optimize maximize minimize',
    _HOURS: 'timeout hours max_hours time_budget time_budget_s time_limit max_time',
    _WORKERS: 'n_jobs num_workers parallel parallelism max_concurrent max_concurrent_trials',
    _SCHEDULER: 'pruner pruning early_stopping stopper',
    _ALGORITHM: 'sampler search_alg searcher tuner suggester method strategy',
    _DIRECTORY: 'storage study_name directory output_dir log_dir logdir local_dir storage_path',
    _SPACE: 'search_space param_space config params parameters hyperparameters',
    _SEED: 'random_state random_seed rng',
    _SILENT: 'quiet verbose show_progress show_progress_bar progress_bar',
}
_WORDS = {name: words for words, names in _NAMES.items() for name in names.split()}

PYTHON = {name: python for name, (python, _) in _WORDS.items()}
"""The argument of `paxtune.tune` to write, by another name for it."""

FLAGS = {f'--{name}': flag for name, (_, flag) in _WORDS.items() if flag}
"""The flag to write, by another name for it."""
