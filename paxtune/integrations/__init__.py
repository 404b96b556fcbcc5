"""Other tools: our algorithms and experiments in other tuners, our studies in trackers.

Each file imports one library, an extra. `paxtune.study` exports studies to other tools.
"""
