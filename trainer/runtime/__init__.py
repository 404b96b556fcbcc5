"""The runtime of a training process: directories, signals, other processes, metrics on disk.

This room deals with the machine. It knows neither models nor data. The training loop that uses it
lies in `trainer.loop`.
"""
