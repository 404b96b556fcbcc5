"""Two objectives, the loss and FLOPs per token, and their Pareto front.

    python -m examples.multi_objective

10 trials take a minute on two cores. The Pareto front that it prints reaches from 4.2 bits per byte
for 50,000 FLOPs per token to 3.6 for 800,000. The same command resumes. To run the study without
this script: `python -m paxtune.search --exp=examples.multi_objective.LossAndCost`.
"""

import argparse
from collections.abc import Sequence

import pyglove as pg

from paxtune import Budget, MetricReward, Objectives, Progress, Search, Study, Tunable, intv, tune
from search_spaces.tunable_lm import Tiny
from trainer.symbolic.overrides import smoke


def LossAndCost() -> Tunable:
    """Searches the width, the depth and the hidden width of a model."""
    experiment = Tiny()
    experiment.rebind(
        {
            'task.model.embedding.dims': pg.oneof([16, 32, 64]),
            'task.model.stack.layers[0].attention.num_heads': 2,
            'task.model.stack.layers[0].feed_forward.hidden_dims': intv(16, 256, 'log'),
            'task.learner.learning_rate': 0.02,
            'train.evaluation.every': 60,
            'search': Search(
                Objectives(
                    [
                        MetricReward('minimize', 'eval/bits_per_byte'),
                        MetricReward('minimize', 'flops_per_token'),
                    ]
                ),
                budget=Budget(10),
            ),
        }
    )
    return experiment


def front(study: Study) -> str:
    """Returns the Pareto front, the cheapest trial first."""
    lines = ['trial  bits per byte  FLOPs per token']
    for trial in sorted(study.pareto_front, key=lambda trial: trial.rewards[1]):
        bits, flops = trial.rewards
        chosen = (f'{path.split(".")[-1]}={value}' for path, value in trial.decisions.items())
        lines.append(f'{trial.id:5}  {bits:13.3f}  {flops:15,.0f}  {" ".join(chosen)}')
    return '\n'.join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument('--job_log_dir', default='runs/examples.multi_objective')
    flags.add_argument('--num_trials', type=int, default=10)
    flags.add_argument('--smoke', action='store_true', help='tiny, to see that it runs')
    args = flags.parse_args(argv)
    with tune(
        smoke(LossAndCost()) if args.smoke else LossAndCost(),
        num_trials=args.num_trials,
        job_log_dir=args.job_log_dir,
        callbacks=[Progress()],
    ) as study:
        print(front(study))


if __name__ == '__main__':
    main()
