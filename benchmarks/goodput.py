"""Steps that kills cost, and goodput, with local checkpoints and without.

    python benchmarks/goodput.py --check

A small decoder trains, and is killed by SIGKILL at steps that the seed determines: between durable
checkpoints, which are rare. The same command continues it each time. The steps lost by a kill are
those from its resumption to the last step before it. Goodput is that of `wall_clock.json`, over all
processes: on a small model the start of each process is most of the rest.

Goals: a kill costs at most two local intervals, of which the second is one whose write it ended;
all runs end with the losses of the undisturbed one. `--quick` has one kill, and compares the losses
with each other. `--check` exits with 1 where a goal is missed.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.packing import CASES  # noqa: E402
from benchmarks.reference_loss import experiment  # noqa: E402
from trainer.experiment import Checkpoints, Evaluation, Experiment, TrainLoop  # noqa: E402
from trainer.inputs.text.stdlib import StdlibInput  # noqa: E402

STEPS, DURABLE, LOCAL = 400, 200, 10


class Outcome(NamedTuple):
    """A run that was killed, and continued to its end.

    Attributes:
        lost: steps that each kill cost.
        goodput: of all of its processes.
        seconds: the wall clock of all of its processes.
        losses: the training loss of each step.
    """

    lost: list[int]
    goodput: float
    seconds: float
    losses: list[float]


def Model() -> Experiment:
    """The experiment of the benchmark, without local checkpoints."""
    case = CASES[0]
    data = StdlibInput(
        batch_size=case.batch_size, is_training=True, sequence_length=case.length, split='train'
    )
    made = experiment(data, case.shape)
    made.rebind(
        train=TrainLoop(
            STEPS,
            evaluation=Evaluation(STEPS),
            checkpoints=Checkpoints(DURABLE),
            summary_interval_steps=1,
        )
    )
    return made


def train(folder: Path, kills: list[int], local: bool) -> Outcome:
    """Trains in a folder, and kills the process where it has reached each of some steps."""
    flags = ['--exp=benchmarks.goodput.Model', f'--job_log_dir={folder / "job"}']
    if local:
        memory = f"LocalCheckpoints('{folder / 'memory'}', every={LOCAL})"
        flags += ['--set', f'train.checkpoints.local={memory}']
    reached, lost, began = 0, list[int](), time.monotonic()
    for kill in [*kills, None]:
        started = time.time()
        running = subprocess.Popen(
            [sys.executable, '-m', 'trainer.main', *flags], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        if kill is not None:
            while running.poll() is None and reached_since(folder, started)[1] < kill:
                time.sleep(0.005)
            running.kill()
        code = running.wait()
        if kill is None and code:
            raise RuntimeError(f'the run failed with exit code {code}')
        resumed_from, last = reached_since(folder, started)
        if reached:
            lost.append(reached - resumed_from)
        reached = last
    found = json.loads((folder / 'job' / 'wall_clock.json').read_text())
    losses = [each['train/loss'] for each in records(folder) if 'train/loss' in each]
    return Outcome(lost, found['goodput'], time.monotonic() - began, losses)


def reached_since(folder: Path, started: float) -> tuple[int, int]:
    """The step from which a process continued, and the last one that it has summarized."""
    steps = [each['step'] for each in records(folder) if each['time'] >= started]
    return (min(steps) - 1, max(steps)) if steps else (0, 0)


def records(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of the metrics of a run."""
    file = folder / 'job' / 'metrics.jsonl'
    lines = file.read_text().split('\n')[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--seed', type=int, default=0)
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    random.seed(args.seed)
    kills = sorted(random.sample(range(DURABLE // 4, DURABLE), 1 if args.quick else 3))
    result: dict[str, float] = {}
    print(f'{STEPS} steps, durable checkpoints every {DURABLE}, kills at {kills}')
    print('local checkpoints   steps lost by a kill   goodput   seconds')
    outcomes = {}
    for name, local in {'none': False, f'every {LOCAL}': True}.items():
        with tempfile.TemporaryDirectory() as folder:
            found = outcomes[local] = train(Path(folder), kills, local)
        lost = ' '.join(map(str, found.lost))
        print(f'{name:17}   {lost:>20}   {found.goodput:7.1%}   {found.seconds:7.1f}', flush=True)
        label = 'local' if local else 'durable'
        result[f'{label}_lost'] = statistics.mean(found.lost)
        result[f'{label}_goodput'] = round(found.goodput, 3)
    wanted = outcomes[False].losses
    if not args.quick:
        with tempfile.TemporaryDirectory() as folder:
            wanted = train(Path(folder), [], local=False).losses
    result['equal'] = int(all(each.losses == wanted for each in outcomes.values()))
    print('RESULT ' + json.dumps(result))
    is_good = result['equal'] and max(outcomes[True].lost) <= 2 * LOCAL
    return int(args.check and not is_good)


if __name__ == '__main__':
    sys.exit(main())
