"""Other tuners: our algorithms and experiments in their terms.

Each file imports the library of its own, an extra. What a study writes for other tools lies in
`paxtune.study`.
"""
