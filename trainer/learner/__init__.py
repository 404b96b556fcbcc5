"""Learners: optimizers, learning-rate schedules, clipping, weight decay."""

from trainer.learner.learner import Learner as Learner
from trainer.learner.optimizers import SGD as SGD
from trainer.learner.optimizers import AdamW as AdamW
from trainer.learner.optimizers import Optax as Optax
from trainer.learner.optimizers import Optimizer as Optimizer
from trainer.learner.schedules import Constant as Constant
from trainer.learner.schedules import Cosine as Cosine
from trainer.learner.schedules import Linear as Linear
from trainer.learner.schedules import Schedule as Schedule
