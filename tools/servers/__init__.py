"""Real servers on this machine, for tests and benchmarks: PostgreSQL, Ray, SLURM, small disks."""
