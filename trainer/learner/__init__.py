"""Learners: optimizers, learning-rate schedules, gradient clipping, frozen parameters.

A learner turns gradients into new parameters. Losses and the computation of gradients live
elsewhere.
"""

from trainer.learner.clipping import Clipping as Clipping
from trainer.learner.clipping import Elementwise as Elementwise
from trainer.learner.clipping import GlobalNorm as GlobalNorm
from trainer.learner.clipping import ParameterNorm as ParameterNorm
from trainer.learner.composite_schedules import Cycle as Cycle
from trainer.learner.composite_schedules import Piecewise as Piecewise
from trainer.learner.composite_schedules import PiecewiseConstant as PiecewiseConstant
from trainer.learner.composite_schedules import Scaled as Scaled
from trainer.learner.freezing import Freeze as Freeze
from trainer.learner.freezing import TrainOnly as TrainOnly
from trainer.learner.learner import AuxiliaryOptimizer as AuxiliaryOptimizer
from trainer.learner.learner import Learner as Learner
from trainer.learner.muon import Muon as Muon
from trainer.learner.norms import NormMetrics as NormMetrics
from trainer.learner.optax_optimizers import Optax as Optax
from trainer.learner.optimizers import SGD as SGD
from trainer.learner.optimizers import Adafactor as Adafactor
from trainer.learner.optimizers import AdamW as AdamW
from trainer.learner.optimizers import Lion as Lion
from trainer.learner.optimizers import Optimizer as Optimizer
from trainer.learner.rung_schedule import DecayAtRungs as DecayAtRungs
from trainer.learner.schedules import Constant as Constant
from trainer.learner.schedules import Cosine as Cosine
from trainer.learner.schedules import Exponential as Exponential
from trainer.learner.schedules import LinearSchedule as LinearSchedule
from trainer.learner.schedules import Noam as Noam
from trainer.learner.schedules import Polynomial as Polynomial
from trainer.learner.schedules import Schedule as Schedule
from trainer.learner.schedules import SqrtDecay as SqrtDecay
from trainer.learner.skipping import SkipNonFinite as SkipNonFinite
from trainer.learner.width_scaling import WidthScaling as WidthScaling
