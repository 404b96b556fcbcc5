"""A SLURM cluster of two nodes, whose daemons all run on this machine: Debian's slurmd, munge."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tools.servers.ports import unused_ports

DAEMONS = ('munged', 'slurmctld', 'slurmd')

# JAX looks for the first process on the first node by name, which must have an address.
_CONF = """
ClusterName=paxtune
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={ports[0]}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=300
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName={host}-other NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=main Nodes={host},{host}-other Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def cluster(home: Path) -> Iterator[dict[str, str]]:
    """Runs the daemons while entered. Yields the variables of its commands and jobs."""
    missing = [each for each in DAEMONS if shutil.which(each, path=PATH) is None]
    assert not missing, f'{missing}: apt-get install slurmctld slurmd munge'
    host = socket.gethostname()
    for name in ('munge', 'state'):
        (home / name).mkdir(mode=0o700)
    key = home / 'munge' / 'key'
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    conf = home / 'slurm.conf'
    conf.write_text(_CONF.format(home=home, host=host, ports=unused_ports(3)))
    environment = {'SLURM_CONF': str(conf)}
    munge = {name: f'{home}/munge/{name}' for name in ('socket', 'log-file', 'pid-file')}
    flags = [f'--{name}={path}' for name, path in munge.items()]
    daemons = [
        ['munged', '--foreground', '--force', f'--key-file={key}', *flags],
        ['slurmctld', '-D'],
        ['slurmd', '-D', '-N', host],
        ['slurmd', '-D', '-N', f'{host}-other'],
    ]
    started: list[subprocess.Popen[bytes]] = []
    with open(home / 'output', 'wb') as output:
        try:
            for daemon in daemons:
                env = {**os.environ, **environment, 'PATH': PATH}
                started.append(subprocess.Popen(daemon, env=env, stdout=output, stderr=output))
                time.sleep(1.0)
            _wait_until_idle(environment)
            yield environment
        finally:
            subprocess.run(
                ['scancel', '--full', '--signal=KILL', '--user=root'],
                env={**os.environ, **environment},
                check=False,
            )
            for each in reversed(started):
                each.terminate()
                try:
                    each.wait(timeout=60)
                except subprocess.TimeoutExpired:  # It waits for jobs of a test that failed.
                    each.kill()
                    each.wait()


PATH = f'{os.environ["PATH"]}:/usr/sbin:/sbin'


def _wait_until_idle(environment: dict[str, str]) -> None:
    states = ''
    for _ in range(60):
        sinfo = ['sinfo', '--noheader', '--Node', '--format=%t']
        env = {**os.environ, **environment}
        states = subprocess.run(sinfo, env=env, capture_output=True, text=True, check=False).stdout
        if states.split() == ['idle', 'idle']:
            return
        time.sleep(1.0)
    raise AssertionError(f'the nodes are {states!r}')
