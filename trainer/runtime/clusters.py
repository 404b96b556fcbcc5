"""Processes that a scheduler started together: TPU pods, SLURM, MPI, Kubernetes."""

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

# Public JAX detects a cluster only while it joins it, also one of a single process.
from jax._src.clusters import ClusterEnv

_JOIN_SECONDS = 300
_INDEX = 'JOB_COMPLETION_INDEX'


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The place of this process among the processes that its scheduler started together.

    Attributes:
        name: of the scheduler, 'slurm', 'ompi', 'gketpu', 'gcetpu', as in JAX; '' on Kubernetes.
        coordinator: host:port.
        count: the number of processes.
        index: of this one, from 0.
        local_devices: the accelerators of this process, by number; None for all of its host.
    """

    name: str
    coordinator: str
    count: int
    index: int
    local_devices: Sequence[int] | None


def detected() -> Cluster | None:
    """Returns the place of this process in the cluster that JAX finds; None without others.

    Raises:
        Exception: of any kind, where the environment is incomplete or cannot be read.
    """
    found = _environment()
    if found is None or found.get_process_count() == 1:
        return None
    coordinator, count, index, devices = ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, None, _JOIN_SECONDS
    )
    assert coordinator is not None and count is not None and index is not None
    return Cluster(found.name, coordinator, count, index, None if _is_alone() else devices)


def is_present() -> bool:
    """True if a scheduler has started this process, alone or with others."""
    return _environment() is not None


def _environment() -> Any:
    for each in ClusterEnv._cluster_types:
        # Any pod is on Kubernetes. The pods of an indexed Job were started together.
        is_single = each.__name__ == 'K8sCluster' and _INDEX not in os.environ
        if not each.opt_in_only_method and not is_single and each.is_env_present():
            return each
    return None


def _is_alone() -> bool:
    """True if no other process was started on this host, so that this one has all its GPUs."""
    tasks = os.environ.get('SLURM_STEP_TASKS_PER_NODE', '')
    is_alone = re.fullmatch(r'1(\(x\d+\))?', tasks) is not None
    return is_alone or os.environ.get('OMPI_COMM_WORLD_LOCAL_SIZE') == '1'
