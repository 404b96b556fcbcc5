"""Studies on recorded learning curves, without any training.

The simulator runs the study's own decisions on a virtual clock. `RecordedTrials` runs real studies,
with processes and checkpoints. The decisions are made in `paxtune.study` and `paxtune.schedulers`.
"""
