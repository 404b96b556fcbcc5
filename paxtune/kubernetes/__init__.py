"""Manifests of Kubernetes for a search: its service, and Jobs of workers.

Pure functions from a `Deployment` to dicts of the API. No client of Kubernetes is used, and nothing
is applied: the command `paxtune.deploy` prints the dicts as YAML.
"""
