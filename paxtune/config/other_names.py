"""Names of other tuners for the arguments of `paxtune.tune`, and the flags of our commands."""

from collections.abc import Collection

_TRIALS = ('num_trials=20', '--num_trials=20')
_GOAL = ("objective='minimize'", '--metric=eval/loss --goal=minimize')
_HOURS = ('timeout=3600', '--max_hours=1')
_WORKERS = ('workers=2', '--workers=2')
_SCHEDULER = ("scheduler='median'", '--scheduler=median')
_ALGORITHM = ("algorithm='tpe'", '--algorithm=tpe')
_DIRECTORY = ("job_log_dir='runs/mine'", '--job_log_dir=runs/mine')
_SPACE = ("space={'x': pg.floatv(0.0, 1.0)}", "--tune 'path=floatv(0.0, 1.0)'")
_SEED = ('seed=1', '--seed=1')
_SILENT = ('quiet=True', '--quiet')

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
    _SILENT: 'verbose silent show_progress show_progress_bar progress_bar',
}
_WORDS = {name: words for words, names in _NAMES.items() for name in names.split()}

PYTHON = {name: python for name, (python, _) in _WORDS.items()}
"""The argument of `paxtune.tune` to write, by another name for it."""

FLAGS = {f'--{name}': flag for name, (_, flag) in _WORDS.items() if flag}
"""The flag of a search to write, by another name for it."""

_OF_STUDIES = {
    'DIR, the --job_log_dir of a search': 'log_dir logdir job_log_dir study_dir directory path '
    'study_name experiment_name project',
    '--limit=10': 'n num head num_trials n_trials max_trials max_results',
    '--top=5': 'n num k n_best num_best',
    '--count=2': 'n num num_trials n_trials',
    '--out=FILE': 'output output_file output_path file filename',
    '--format=csv': 'csv output_format f',
    '--sort=COLUMN': 'sort_by sorted_by order order_by',
    '--state=STATE': 'states status filter filter_status',
    '--columns=NAME,…': 'column fields attributes attrs select',
    '--host=ADDRESS': 'bind bind_all address ip server_host',
    '--public_host=NAME': 'allowed_hosts server_name hostname domain',
    '--base_path=/PATH': 'path_prefix url_prefix static_prefix prefix root_path',
    '--interval=SECONDS': 'refresh refresh_interval reload_interval poll_interval',
    '--watch': 'follow live tail',
    '--yes': 'y force assume_yes no_confirm',
    '--exp=NAME': 'experiment module import_module',
}


def of_command(flags: Collection[str]) -> dict[str, str]:
    """Returns the flag of a command on studies to write, by another name for it.

    Args:
        flags: of the command, and DIR where it takes a directory.

    Example:
        >>> of_command(['DIR', '--limit'])['--n'], of_command(['--top'])['--n']
        ('--limit=10', '--top=5')
    """
    return {
        f'--{name}': text
        for text, names in _OF_STUDIES.items()
        if text.replace(',', '=').partition('=')[0] in flags
        for name in names.split()
    }
