"""Token rows for language models, from documents of any length.

Vocabularies, packing into rows and the features of a batch live here. Readers of files live in
the folders beside this one.
"""
