"""Fixes of the protocol, undone: the simulation has to find each (`--mutation=NAME`)."""

import contextlib
import dataclasses
import fcntl
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from paxtune.running.trial_json import TrialJson
from paxtune.service import schema
from paxtune.service.change_feed import ChangeFeed
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.leases import Leases
from paxtune.service.remote_store import RemoteStore
from paxtune.service.updates import Requests
from paxtune.storage import codec
from paxtune.study import transitions
from paxtune.study.record import TrialRecord
from tests.simulation.world import World
from trainer.runtime import directory


def _answer_repeated_additions() -> None:
    def repeated(self: Any, records: object, worker: str, added: Sequence[int]) -> Any:
        return schema.TrialsReply(trials=[self._feed[id_] for id_ in added if id_ in self._feed])

    _put(StudyCoordinator, '_repeated', repeated)


def _trust_commits_in_doubt() -> None:
    @contextlib.contextmanager
    def writing(self: ChangeFeed) -> Iterator[None]:
        yield

    _put(ChangeFeed, 'writing', writing)


def _fork_without_looking() -> None:
    add = RemoteStore.add_trials

    def add_trials(
        self: Any, records: Any, after: int | None = None, suggest_lock: str = ''
    ) -> Any:
        return add(self, records, None, suggest_lock)

    _put(RemoteStore, 'add_trials', add_trials)


def _write_unfenced() -> None:
    may_write, apply = Leases.may_write, RemoteStore.apply

    def unfenced(self: Leases, record: TrialRecord, worker: str, attempt: int) -> bool:
        return worker == '' or may_write(self, record, worker, attempt)

    def forgetful(self: Any, id_: int, transition: Any) -> Any:
        self._sync()
        if codec.parse_trial(self._content[id_]).holder != self.worker:
            self._held.pop(id_, None)
        return apply(self, id_, transition)

    _put(Leases, 'may_write', unfenced)
    _put(RemoteStore, 'apply', forgetful)


def _fence_nothing() -> None:
    for name in ('may_write', 'is_held'):
        _put(Leases, name, lambda *_: True)


def _remember_last_requests() -> None:
    def add(self: Requests, request_id: str, *ids: int) -> None:
        for each in [each for each, others in self.items() if set(others) & set(ids)]:
            del self[each]
        self[request_id] = sorted(ids)

    _put(Requests, 'add', add)
    _put(transitions, '_MAX_REQUESTS', 1)


def _write_any_trial() -> None:
    merge = transitions.merge

    def merged(current: TrialRecord, proposed: TrialRecord, request: str) -> TrialRecord:
        fixed = {name: getattr(proposed, name) for name in ('id', 'parameters', 'created')}
        return merge(dataclasses.replace(current, **fixed), proposed, request)

    _put(transitions, 'merge', merged)


def _expire_in_stalls() -> None:
    _put(Leases, 'tick', lambda self: None)


def _follow_the_wall_clock() -> None:
    begin = TrialJson.__init__

    def begun(self: Any, *args: Any) -> None:
        begin(self, *args)
        self._began = World.current.wall_time

    def seconds(self: Any) -> float:
        return float(self.seconds_before + World.current.wall_time - self._began)

    _put(TrialJson, '__init__', begun)
    _put(TrialJson, 'seconds', property(seconds))


def _lock_nothing() -> None:
    names = {name: getattr(fcntl, name) for name in ('LOCK_EX', 'LOCK_SH', 'LOCK_NB')}
    _put(directory, 'fcntl', types.SimpleNamespace(flock=lambda *_: None, **names))


MUTATIONS: Mapping[str, Callable[[], None]] = {
    'repeated additions': _answer_repeated_additions,
    'commits in doubt': _trust_commits_in_doubt,
    'two forks': _fork_without_looking,
    'unfenced writes': _write_unfenced,
    'no fences': _fence_nothing,
    'last requests': _remember_last_requests,
    'ids': _write_any_trial,
    'stalls': _expire_in_stalls,
    'wall clock': _follow_the_wall_clock,
    'locks': _lock_nothing,
}


def _put(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)
