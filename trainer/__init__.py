"""The trainer: a Pax-style trainer on flax that knows nothing of tuning.

Experiments are symbolic objects (`trainer.experiment`); `trainer.loop.run` trains one and yields
what it measures.
"""
