"""The trainer: a Pax-style trainer on flax, independent of tuning.

Experiments are symbolic objects; `trainer.run` trains one and yields reports:

    for report in trainer.run(experiment, 'runs/mine'):
        print(report.step, report.metrics['eval/loss'])

Names are imported at their first use.
"""

from etils import epy

with epy.lazy_api_imports(globals()):
    from trainer.experiment import Experiment as Experiment
    from trainer.loop.report import Report as Report
    from trainer.loop.train_loop import run as run
    from trainer.runtime.signals import SkipTrial as SkipTrial
    from trainer.runtime.signals import StopTrial as StopTrial
    from trainer.symbolic.component import Component as Component
