"""The search over adapters of a pretrained model: killed, resumed, repeated and exported.

    python -m benchmarks.finetuning DIR OUT [--trials=8]
    TRANSFORMERS_PYTHON benchmarks/pretrained_weights.py reference DIR OUT/peft.npz OUT/adapter
    python -m benchmarks.pretrained_weights compare OUT/merged OUT/peft.npz

The first command searches with the model in DIR. It kills the search in trial 2, resumes it, trains
that trial again without a kill, and writes the best adapter. The others compare its logits with
those of `peft`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from search_spaces.lm import PRETRAINED, FinetuneTunable

KILLED = 2
"""The trial that is killed after its first checkpoint."""

REWARD = 'eval/log_pplx'
_EXP = '--exp=lm.FinetuneTunable'


def main() -> None:
    """Runs all, and prints a table."""
    flags = argparse.ArgumentParser()
    flags.add_argument('directory')
    flags.add_argument('out', type=Path)
    flags.add_argument('--trials', type=int, default=8)
    args = flags.parse_args()
    os.environ[PRETRAINED] = str(Path(args.directory).resolve())
    study, began = args.out / 'study', time.perf_counter()
    search = _command(
        'paxtune.search', _EXP, f'--num_trials={args.trials}', f'--job_log_dir={study}'
    )
    _kill_after_a_checkpoint(search, study)
    subprocess.run(search, check=True)
    seconds = time.perf_counter() - began
    again = args.out / 'again'
    place = f'--study_dir={study}'
    _run('paxtune.train', place, f'--trial={KILLED}', f'--job_log_dir={again}')
    for kind, name in (('peft', 'adapter'), ('hf', 'merged')):
        _run('paxtune.studies', 'weights', str(study), f'--to={kind}', f'--out={args.out / name}')
    before = _untuned(args.out / 'untuned')
    rewards = {file.parent.name[:4]: _reward(file) for file in study.glob('trials/*/metrics.jsonl')}
    killed = next(study.glob(f'trials/{KILLED:04}*/metrics.jsonl'))
    adapter = sum(file.stat().st_size for file in (args.out / 'adapter').iterdir())
    print('| | |', '| --- | ---: |', sep='\n')
    print(f'| loss of held-out answers, un-tuned model | {before:.4f} |')
    print(f'| … best of {len(rewards)} trials | {min(rewards.values()):.4f} |')
    print(f'| … all trials | {", ".join(f"{rewards[name]:.3f}" for name in sorted(rewards))} |')
    print(f'| the search, with its kill | {seconds / 60:.1f} minutes |')
    is_equal = _reward(killed) == _reward(next(again.rglob('metrics.jsonl')))
    print(
        f'| trial {KILLED}, killed and resumed, is bit for bit the undisturbed one | {is_equal} |'
    )
    print(f'| adapter of the best trial | {adapter / 1e6:.1f} MB |')


def _command(module: str, *flags: str) -> list[str]:
    return [sys.executable, '-m', module, *flags]


def _run(module: str, *flags: str) -> None:
    subprocess.run(_command(module, *flags), check=True)


def _kill_after_a_checkpoint(search: list[str], study: Path) -> None:
    process = subprocess.Popen(search, start_new_session=True)
    while not any(study.glob(f'trials/{KILLED:04}*/checkpoints/*/*')):
        if process.poll() is not None:
            raise SystemExit(f'the search ended with exit code {process.returncode}')
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _untuned(directory: Path) -> float:
    """The loss of the model itself: adapters begin at zero, where a rate of 1e-12 keeps them."""
    import pyglove as pg

    import trainer

    made = pg.materialize(FinetuneTunable(), pg.dna_spec(FinetuneTunable()).first_dna())
    made.rebind({'task.learner.learning_rate': 1e-12, 'train.num_train_steps': 1})
    *_, last = trainer.run(made, directory)
    return float(last.metrics[REWARD])


def _reward(metrics: Path) -> float:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return next(float(row[REWARD]) for row in reversed(rows) if REWARD in row)


if __name__ == '__main__':
    main()
