"""Two goals at once: a small loss, and few FLOPs per token. No trial is the best; some are not
worse than any other.

    python -m examples.multi_objective

10 trials take a minute on two cores. It prints the Pareto front, which reaches from about 4.3 bits
per byte for 0.1 million FLOPs per token to about 3.7 for 0.4 million. The same command resumes, and
`python -m paxtune.search --exp=examples.multi_objective.LossAndCost` runs the same study.
"""

import argparse

import pyglove as pg

from examples.tunable_lm import Tiny
from paxtune import MetricReward, Objectives, Progress, Search, Study, Tunable, intv, tune
from trainer.overrides import smoke


def LossAndCost() -> Tunable:
    """The width and the depth of a model, and its learning rate."""
    experiment = Tiny()
    experiment.rebind(
        {
            'task.model.embedding.dims': pg.oneof([16, 32, 64]),
            'task.model.stack.layers[0].attention.num_heads': 2,
            'task.model.stack.layers[0].feed_forward.hidden_dims': intv(16, 256, 'log'),
            'task.learner.learning_rate': 0.02,
            'train.eval_interval_steps': 60,
            'search': Search(
                Objectives(
                    [
                        MetricReward('minimize', 'eval/bits_per_byte'),
                        MetricReward('minimize', 'flops_per_token'),
                    ]
                ),
                num_trials=10,
            ),
        }
    )
    return experiment


def front(study: Study) -> str:
    """The trials that no other is better than in both, cheapest first."""
    lines = ['trial  bits per byte  FLOPs per token']
    for trial in sorted(study.pareto_front, key=lambda trial: trial.rewards[1]):
        bits, flops = trial.rewards
        lines.append(f'{trial.id:5}  {bits:13.3f}  {flops:15,.0f}  {trial.decisions}')
    return '\n'.join(lines)


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument('--job_log_dir', default='runs/examples.multi_objective')
    flags.add_argument('--smoke', action='store_true', help='tiny, to see that it runs')
    args = flags.parse_args()
    experiment = smoke(LossAndCost()) if args.smoke else LossAndCost()
    with tune(experiment, job_log_dir=args.job_log_dir, callbacks=[Progress()]) as study:
        print(front(study))


if __name__ == '__main__':
    main()
