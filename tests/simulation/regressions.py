"""Seeds that once violated an invariant: `test_simulation` simulates them again."""

from collections.abc import Mapping

REGRESSIONS: Mapping[int, str] = {
    34: 'a trial whose fork had gone further looked for the checkpoint of that fork',
    242: 'a trial that continued gave its old checkpoint to the second attempt of its fork',
    371: 'a task of the simulation ended the one that had resumed it',
    607: 'a service that stopped just after its start took trials from living workers',
    10009: 'SIGCONT made the checks of leases forget that a worker had been stopped',
    101658: 'a promotion that was decided from one pause ended a later one',
    100242: 'the checks of leases took a loss for new that a stall had delayed',
    962188: 'a person who searched on a full disk did not end as a command does',
    1731: 'a search that began on a full disk did not end as a command does (forked study)',
    2368: 'a search that began on a full disk did not end as a command does',
}
"""The reason, by seed."""
