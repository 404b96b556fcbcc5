"""Seeds that once violated an invariant: `test_simulation` simulates them again."""

from collections.abc import Mapping

_FULL_DISK = 'a driver that started on a full disk ended with a traceback'
_CUT_OFF = 'a worker whose service was gone before its first trial ended with a traceback'

REGRESSIONS: Mapping[int, str] = {
    32: _FULL_DISK,
    75: _CUT_OFF,
    82: _CUT_OFF,
    188: _FULL_DISK,
    209: 'two workers promoted one trial after a restart of the service: one had a traceback',
    242: 'a trial that continued gave its old checkpoint to the second attempt of its fork',
}
"""The reason, by seed."""
