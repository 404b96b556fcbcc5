"""gRPC service that keeps studies for many workers: server, client, authentication, metrics.

Workers suggest trials; the service only leases and stores them. It imports no users' code.
Also a client of any Vizier server, which keeps the study of one search (`vizier_server_store.py`).
Vizier's API is in `paxtune.vizier_service`, transitions of trials in `paxtune.study`, databases in
`paxtune.storage`.
"""
