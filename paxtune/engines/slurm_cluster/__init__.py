"""Trials on a SLURM cluster.

`engine` has the engine, `job_queue` is SLURM's queue, and `worker_job` runs in a job.
"""
