"""Deployments of the golden files, which `python -m tests.paxtune.kubernetes.cases` rewrites."""

import functools
from pathlib import Path

from paxtune.kubernetes.deployment import Deployment
from paxtune.kubernetes.text import render

GOLDEN = Path(__file__).parent / 'golden'

_c4 = functools.partial(
    Deployment, exp='lm.C4Tunable', image='registry.example/paxtune:1', name='c4'
)

CASES = {
    'volume': _c4(
        job_log_dir='pvc://runs/c4',
        workers=16,
        resources={'cpu': '4', 'memory': '16Gi', 'nvidia.com/gpu': '1'},
        search_flags=('--num_trials=256', '--set', 'train.num_train_steps=100'),
    ),
    'postgres_tpu': _c4(
        job_log_dir='gs://my-bucket/c4',
        workers=4,
        database='postgresql://tuner@db.example/studies',
        tpu=('tpu-v5-lite-podslice', '2x4'),
    ),
    'several_hosts': _c4(
        job_log_dir='gs://my-bucket/c4',
        workers=2,
        hosts_per_trial=4,
        tpu=('tpu-v5p-slice', '2x2x4'),
    ),
}

if __name__ == '__main__':
    for name, deployment in CASES.items():
        (GOLDEN / f'{name}.yaml').write_text(render(deployment))
