import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence

from google.longrunning import operations_pb2
from google.rpc import code_pb2
from vizier._src.service import resources, vizier_service_pb2

from paxtune.storage.codec import TrialProto
from paxtune.vizier_service import names
from paxtune.vizier_service.errors import not_found

_KEPT = 1000
_TYPE = 'type.googleapis.com/vizier.SuggestTrialsResponse'


class Operations:
    """The last finished operations. There are no others: no client waits for one in vain.

    Thread-safe. A restart forgets them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._kept: OrderedDict[str, operations_pb2.Operation] = OrderedDict()

    def finish(
        self, study: str, client: str, trials: Sequence[TrialProto], error: str = ''
    ) -> operations_pb2.Operation:
        """Makes the operation of a suggestion that has ended, with its trials or its error."""
        operation = operations_pb2.Operation(done=True)
        if error:
            operation.error.code, operation.error.message = code_pb2.INVALID_ARGUMENT, error
        else:
            response = vizier_service_pb2.SuggestTrialsResponse(trials=trials)
            response.end_time.GetCurrentTime()
            operation.response.type_url = _TYPE
            operation.response.value = response.SerializeToString()
        owner, name = names.study_of(study)
        with self._lock:
            if len(self._numbers) >= _KEPT:
                self._numbers.clear()
            self._numbers[study, client] += 1
            number = self._numbers[study, client]
            operation.name = resources.SuggestionOperationResource(owner, name, client, number).name
            self._kept[operation.name] = operation
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return operation

    def get(self, name: str) -> operations_pb2.Operation:
        """Returns a finished operation by its name; VizierError if it is unknown."""
        found = self._kept.get(name)
        if found is None:
            raise not_found(f'operation {name[:200]!a}')
        return found
