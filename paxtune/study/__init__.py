"""Studies: typed trial records, the transitions between their states, and the next trial.

Decisions about trials are made here, on plain data. Where a study is kept is the concern of
`paxtune.storage` and `paxtune.service`. Running trials is the concern of `paxtune.running`.
"""
