"""Trials on a Ray cluster.

`engine.py` has the engine. It starts one coordinator, an actor that outlives the search command.
The coordinator keeps the study and its workers: a placement group for each, with one actor for
each process. Actors exchange plain data.
"""
