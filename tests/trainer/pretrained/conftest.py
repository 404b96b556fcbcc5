collect_ignore = ['reference.py']  # It runs in the environment of transformers alone.
