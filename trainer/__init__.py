"""The trainer: a Pax-style trainer on flax that knows nothing of tuning.

Experiments are symbolic objects; `trainer.run` trains one and yields what it measures:

    for measurement in trainer.run(experiment, 'runs/mine'):
        print(measurement.step, measurement.metrics['eval/loss'])

Names are imported when they are first used.
"""

from etils import epy

with epy.lazy_api_imports(globals()):
    from trainer.experiment import Experiment as Experiment
    from trainer.loop.train_loop import Measurement as Measurement
    from trainer.loop.train_loop import run as run
    from trainer.runtime.signals import SkipTrial as SkipTrial
    from trainer.runtime.signals import StopTrial as StopTrial
    from trainer.symbolic.component import Component as Component
