"""gRPC service that keeps studies for many workers: server, client, authentication, metrics.

Workers suggest trials; the service only leases and stores them. It imports neither JAX nor users'
code. Transitions of trials are in `paxtune.study`, databases in `paxtune.storage`.
"""
