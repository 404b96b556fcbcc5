"""Engines: where the trials of a search run. Each engine is one class in one file.

An engine opens the store of a study and runs its trials; trials themselves run through
`paxtune.running`. The decisions about trials are made in `paxtune.study`.
"""
