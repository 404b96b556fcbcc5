"""Processes of one command, in the simulated environments of schedulers."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from tools.servers.ports import unused_port
from trainer.runtime import clusters, processes
from trainer.symbolic.errors import UserError

_COUNT = 2

# Says who is there, as a command that has joined does.
_COMMAND = """
import argparse, jax
from trainer.runtime import processes
flags = {'coordinator': None, 'num_processes': None, 'process_id': None}
processes.start(argparse.Namespace(**flags))
print(processes.gather(processes.index()), jax.process_count(), jax.device_count())
"""


def slurm(index: int) -> dict[str, str]:
    return {
        'SLURM_JOB_ID': '17',
        'SLURM_STEP_NODELIST': 'localhost,other[2-4]',
        'SLURM_STEP_TASKS_PER_NODE': '1(x2)',
        'SLURM_NTASKS': str(_COUNT),
        'SLURM_PROCID': str(index),
        'SLURM_LOCALID': '0',
    }


def open_mpi(index: int) -> dict[str, str]:
    return {
        'OMPI_MCA_orte_hnp_uri': '1531576320.0;tcp://127.0.0.1:34911',
        'OMPI_COMM_WORLD_SIZE': str(_COUNT),
        'OMPI_COMM_WORLD_RANK': str(index),
        'OMPI_COMM_WORLD_LOCAL_RANK': str(index),
        'OMPI_COMM_WORLD_LOCAL_SIZE': str(_COUNT),
    }


def two_tpu_slices(index: int) -> dict[str, str]:
    return {
        'JAX_FORCE_TPU_INIT': '1',  # As if there were chips.
        'TPU_WORKER_HOSTNAMES': 'localhost',
        'TPU_WORKER_ID': '0',
        'MEGASCALE_COORDINATOR_ADDRESS': 'localhost',
        'MEGASCALE_NUM_SLICES': '2',
        'MEGASCALE_SLICE_ID': str(index),
    }


def started(environment: Mapping[str, str]) -> 'subprocess.Popen[str]':
    return subprocess.Popen(
        [sys.executable, '-c', _COMMAND],
        env={**os.environ, 'JAX_PLATFORMS': 'cpu', **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize('environment', [slurm, two_tpu_slices])
def test_the_processes_of_one_command_join_one_run(
    environment: Callable[[int], dict[str, str]],
) -> None:
    port = {'JAX_COORDINATOR_PORT': str(unused_port())}
    running = [started({**environment(index), **port}) for index in range(_COUNT)]
    for process in running:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        # Gloo writes to the same output.
        assert '[0, 1] 2 2' in out, out + err


def test_a_process_alone_joins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clusters.detected() is None
    for name, value in {**slurm(0), 'SLURM_NTASKS': '1'}.items():
        monkeypatch.setenv(name, value)
    assert clusters.detected() is None and clusters.is_present()


def test_a_process_on_each_node_has_all_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm(1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('JAX_COORDINATOR_PORT', '9000')
    assert clusters.detected() == clusters.Cluster('slurm', 'localhost:9000', 2, 1, None)
    monkeypatch.setenv('SLURM_STEP_TASKS_PER_NODE', '2')
    found = clusters.detected()
    assert found is not None and found.local_devices == [0]


def test_processes_of_open_mpi_on_one_node_share_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in open_mpi(1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('JAX_COORDINATOR_PORT', '9000')
    assert clusters.detected() == clusters.Cluster('ompi', '127.0.0.1:9000', 2, 1, [1])


def test_only_pods_of_an_indexed_job_join_and_need_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv('KUBERNETES_SERVICE_HOST', '10.0.0.1')
    monkeypatch.setitem(sys.modules, 'kubernetes', None)  # As if it were not installed.
    assert clusters.detected() is None and not clusters.is_present()
    monkeypatch.setenv('JOB_COMPLETION_INDEX', '0')
    with pytest.warns(UserWarning, match='Kubernetes environment detected'):
        assert clusters.detected() is None


def test_an_environment_that_cannot_be_read_is_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**slurm(0), 'SLURM_NTASKS': 'four'}.items():
        monkeypatch.setenv(name, value)
    flags = argparse.Namespace(coordinator=None, num_processes=None, process_id=None)
    with pytest.raises(UserError, match=r'^--coordinator=auto.*invalid literal') as raised:
        processes.start(flags)
    assert '--coordinator=none' in str(raised.value)
