"""The load of `benchmarks/service_load.py` on a service, and on Optuna's storages."""
