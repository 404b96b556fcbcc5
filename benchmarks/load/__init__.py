"""What `benchmarks/service_load.py` puts on a service, and on Optuna's storages."""
