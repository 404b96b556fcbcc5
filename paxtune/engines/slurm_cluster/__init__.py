"""Trials on a SLURM cluster.

`engine` keeps the workers, `job_queue` is SLURM's queue, and `worker_job` runs in a job.
"""
