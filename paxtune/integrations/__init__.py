"""Other tools: our algorithms and experiments in other tuners, our studies in trackers.

Each file imports the library of its own, an extra. What a study writes for other tools lies in
`paxtune.study`.
"""
