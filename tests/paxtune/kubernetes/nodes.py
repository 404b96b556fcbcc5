"""Containers of manifests as processes of this machine."""

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers.processes import environment

Manifest = dict[str, Any]


class Cluster:
    """Runs containers as processes, with their Secrets, volumes and addresses.

    Attributes:
        root: the directories of volumes.
        secrets: contents by name and key.
    """

    def __init__(self, root: Path, name: str, hosts: Mapping[str, str] = {}) -> None:
        """Prepares a cluster.

        Args:
            name: of the Service of port 8470, here a free port.
            hosts: other texts of commands, such as addresses, and their replacements.
        """
        self.root, self.secrets = root, dict[str, dict[str, str]]()
        self._processes: list[subprocess.Popen[str]] = []
        self.port = free_port()
        self._local = {
            f'{name}:8470': f'localhost:{self.port}',
            '--port=8470': f'--port={self.port}',
            '0.0.0.0': '127.0.0.1',
            **{path: str(root / path[1:]) for path in ('/data', '/runs', '/tmp')},
            **hosts,
        }
        for path in ('data', 'runs', 'tmp'):
            (root / path).mkdir()

    def create_secrets(self, text: str) -> None:
        """Runs the commands at the top of manifests; `kubectl` is replaced."""
        folder = self.root / 'secrets'
        folder.mkdir()
        for line in re.findall(r'^#   (.*)$', text, re.MULTILINE):
            if line.startswith('kubectl'):
                self._create_secret(folder, shlex.split(line))
            else:
                subprocess.run(line, shell=True, cwd=folder, check=True, capture_output=True)

    def _create_secret(self, folder: Path, words: list[str]) -> None:
        assert words[:4] == ['kubectl', 'create', 'secret', 'generic']
        self.secrets[words[4]] = {}
        for word in words[5:]:
            assert word.startswith('--from-file=')
            key, _, file = word.removeprefix('--from-file=').rpartition('=')
            self.secrets[words[4]][key or file] = (folder / file).read_text()

    def start(self, pod: Manifest, container: Manifest, **env: str) -> 'subprocess.Popen[str]':
        """Starts a container of a pod."""
        mounts = {each['name']: each['mountPath'] for each in container['volumeMounts']}
        local = dict(self._local)
        for volume in pod['volumes']:
            if 'projected' in volume and volume['name'] in mounts:
                local[mounts[volume['name']]] = str(self._projected(volume['projected']))
        for each in container['env']:
            env[each['name']] = self._value(each, local)

        def here(text: str) -> str:
            text = re.sub('|'.join(map(re.escape, local)), lambda found: local[found[0]], text)
            return re.sub(r'\$\((\w+)\)', lambda found: env[found[1]], text)

        python, *command = container['command']
        assert python == 'python'
        process = subprocess.Popen(
            [sys.executable, *map(here, command)],
            cwd=here(container['workingDir']),
            # Every pod has the address of the API, by which JAX detects Kubernetes.
            env={**environment(), 'KUBERNETES_SERVICE_HOST': '10.0.0.1', **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._processes.append(process)
        return process

    def _value(self, variable: Manifest, local: Mapping[str, str]) -> str:
        if 'value' in variable:
            value = str(variable['value'])
            return local.get(value, value)
        reference = variable['valueFrom']['secretKeyRef']
        return self.secrets[reference['name']][reference['key']]

    def _projected(self, volume: Manifest) -> Path:
        files = {
            item['path']: self.secrets[source['secret']['name']][item['key']]
            for source in volume['sources']
            for item in source['secret']['items']
        }
        folder = self.root / '-'.join(sorted(files))
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        return folder

    def probe(self, pod: Manifest, kind: str) -> int:
        """Runs a probe of the only container of a pod; returns 0 if it succeeds."""
        (container,) = pod['containers']
        probe = container[kind]
        if 'exec' in probe:
            process = self.start(pod, {**container, 'command': probe['exec']['command']})
            process.communicate(timeout=300)  # This machine may be busier than a node.
            return process.returncode
        assert probe['tcpSocket']['port'] in {each['name'] for each in container['ports']}
        with socket.socket() as connection:
            return connection.connect_ex(('127.0.0.1', self.port))

    def stop(self) -> None:
        """Kills what still runs."""
        for process in self._processes:
            with process:
                process.kill()


def finished(process: 'subprocess.Popen[str]', code: int = 0, timeout: float = 300) -> str:
    """Waits for a container, which must end with the code; returns its output."""
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == code, out
    return out


def free_port() -> int:
    """Returns a port that is free now."""
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        return int(found.getsockname()[1])
