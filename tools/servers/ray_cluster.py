"""A real Ray cluster on this machine, each node with processes of its own.

The cluster belongs to a process, `python -m tools.servers.ray_cluster`, so that Ray starts no
threads in the process of a test. The process reads commands from its input: `kill` kills a node
other than the head, and `add` adds one.
"""

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from tools.servers.ports import unused_port

ROOT = Path(__file__).parents[2]

ENVIRONMENT = {
    'RAY_USAGE_STATS_ENABLED': '0',
    'RAY_enable_metrics_collection': '0',
    # A busy machine starts a node slowly.
    'RAY_raylet_start_wait_time_s': '600',
}
_NODE = {'object_store_memory': 80 * 2**20, 'include_dashboard': False}
_UNUSED_PORTS = ('metrics_agent_port', 'metrics_export_port', 'dashboard_agent_listen_port')
_READY = 'ready'


def _environment() -> dict[str, str]:
    # A driver compiles as a program of a user does.
    own = {'PYTHONPATH': str(ROOT), 'JAX_DISABLE_MOST_OPTIMIZATIONS': 'false'}
    return {**os.environ, **own, **ENVIRONMENT}


class RayCluster:
    """A cluster.

    Attributes:
        address: of its head.
        jobs: the address for `ray job submit`; empty where the cluster takes no jobs.
        environment: of a process that uses it.
    """

    def __init__(self, process: 'subprocess.Popen[str]') -> None:
        self._process = process
        self.address, self.jobs = self._answer().split(',')
        self.environment = {**_environment(), 'RAY_ADDRESS': self.address}

    def kill_node(self) -> None:
        """Kills a node, with all that runs there."""
        self._ask('kill')

    def add_node(self) -> None:
        """Adds a node."""
        self._ask('add')

    def python(self, *arguments: str, cwd: Path = ROOT) -> 'subprocess.Popen[str]':
        """Starts Python as a driver on the head."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=self.environment,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _ask(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f'{command}\n')
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_READY):
                return line.removeprefix(_READY).strip()
        raise RuntimeError('the Ray cluster has ended: its messages are above')


@contextlib.contextmanager
def started(nodes: int = 3, cpus: int = 2, takes_jobs: bool = False) -> Iterator[RayCluster]:
    """Runs a cluster while entered.

    Args:
        nodes: their number.
        cpus: claimed by each.
        takes_jobs: start Ray's dashboard, which `ray job submit` needs.
    """
    process = subprocess.Popen(
        [sys.executable, '-m', 'tools.servers.ray_cluster', str(nodes), str(cpus), str(takes_jobs)],
        env=_environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield RayCluster(process)
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait(120)
        process.stdout.close()


def _serve(nodes: int, cpus: int, takes_jobs: bool) -> None:
    from ray._private.node import Node
    from ray.cluster_utils import Cluster

    def node() -> dict[str, Any]:
        return {**_NODE, 'num_cpus': cpus, 'runtime_env_agent_port': unused_port()}

    with mock.patch.object(Node, 'start_raylet', _patient(Node.start_raylet)):
        head = {**node(), **(_dashboard() if takes_jobs else {})}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        others = [cluster.add_node(**node()) for _ in range(nodes - 1)]
        print(_READY, f'{cluster.address},{cluster.webui_url or ""}', flush=True)
        for command in sys.stdin:
            if command.strip() == 'kill':
                lost = next(each for each in others if each.node_id not in _leading(cluster))
                others.remove(lost)
                cluster.remove_node(lost, allow_graceful=False)
            else:
                others.append(cluster.add_node(**node()))
            print(_READY, flush=True)
    started = psutil.Process().children(recursive=True)
    cluster.shutdown()
    for process in started:  # Some of the dashboard outlive it.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _dashboard() -> dict[str, Any]:
    """Returns the settings of a head that takes jobs."""
    ports = {name: unused_port() for name in ('dashboard_port', 'dashboard_agent_listen_port')}
    return {'include_dashboard': True, **ports}


def _patient(start: Callable[..., None]) -> Callable[..., None]:
    """Says which ports a node has: on a busy machine, Ray would not wait until its agents do."""
    raylet: Any = importlib.import_module('ray._raylet')  # It has no types.

    def start_raylet(node: Any, *arguments: Any, **options: Any) -> None:
        ports = dict.fromkeys(_UNUSED_PORTS, -1)
        ports['runtime_env_agent_port'] = node._ray_params.runtime_env_agent_port
        for name, port in ports.items():
            raylet.persist_port(node.get_session_dir_path(), node.node_id, name, port)
        start(node, *arguments, **options)

    return start_raylet


def _leading(cluster: Any) -> set[str]:
    """The nodes of coordinators and their drivers: of the nodes of one machine, Ray takes any."""
    actors = cluster.global_state.actor_table(None).values()
    leading = [each for each in actors if each['ActorClassName'] == 'Coordinator']
    return {each['Address']['NodeID'] for each in leading if each['State'] != 'DEAD'}


if __name__ == '__main__':
    os.environ.update(ENVIRONMENT)
    _serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == 'True')
