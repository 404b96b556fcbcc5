"""Running trials: the tuner, workers, several hosts, callbacks.

This room starts processes and calls the trainer. Which trial runs next is decided in
`paxtune.study`. Tables and reports lie in `paxtune.reports`.
"""
