"""Searches a function, and two trials of an experiment: what an installation has to do at least."""

import subprocess
import sys
import tempfile

import pyglove as pg

import paxtune


def main() -> None:
    """Fails where a search does."""
    study = paxtune.tune(
        lambda x: (x - 0.3) ** 2,
        space={'x': pg.floatv(0.0, 1.0)},
        objective='minimize',
        num_trials=8,
    )
    assert study.best.reward < 0.1, study.best
    with tempfile.TemporaryDirectory() as directory:
        search = [sys.executable, '-m', 'paxtune.search', '--exp=lm.StdlibTunable', '--smoke']
        subprocess.run([*search, '--num_trials=2', f'--job_log_dir={directory}'], check=True)
        with paxtune.load_study(directory) as study:
            assert [trial.state for trial in study.trials] == ['COMPLETED'] * 2, study.trials
    print(f'two searches passed on Python {sys.version.split()[0]}')


if __name__ == '__main__':
    main()
