"""Measures: definitions of a task's metrics beside its loss. Each adds up exactly over batches.

The sums themselves, and their aggregation, are in `trainer.metrics`.
"""

from trainer.measures.accuracy import AccuracyAt as AccuracyAt
from trainer.measures.accuracy import AccuracyStrict as AccuracyStrict
from trainer.measures.auc import Auc as Auc
from trainer.measures.base import Measure as Measure
from trainer.measures.base import Outcome as Outcome
from trainer.measures.class_scores import F1 as F1
from trainer.measures.class_scores import Precision as Precision
from trainer.measures.class_scores import Recall as Recall
from trainer.measures.clu_measure import CluMeasure as CluMeasure
from trainer.measures.mean_loss import MeanLoss as MeanLoss
