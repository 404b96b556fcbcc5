"""Resource names of Vizier: owners/OWNER/studies/STUDY/trials/NUMBER."""

import re

from paxtune.storage.database import OWNER
from paxtune.vizier_service.errors import VizierError, invalid, not_found

_PART = re.compile(r'[^/]{1,200}')
_OWNER_NAME = re.compile(r'owners/([^/]+)')
_STUDY_NAME = re.compile(r'owners/([^/]+)/studies/([^/]+)')
_TRIAL_NAME = re.compile(r'(owners/[^/]+/studies/[^/]+)/trials/([^/]+)')
_OPERATION_NAME = re.compile(r'owners/([^/]+)/operations/suggestion/([^/]+)/[^/]+/\d+')


def part(text: str, what: str) -> str:
    """Validates a part of a name: printable, at most 200 characters, and no slash."""
    if not _PART.fullmatch(text) or not text.isprintable():
        raise invalid(f'{what}: expected 1 to 200 printable characters and no slash')
    return text


def owner_of(name: str) -> str:
    """Returns the owner of the name of an owner."""
    if found := _OWNER_NAME.fullmatch(name):
        return part(found[1], 'owner')
    raise _unlike(name, 'an owner')


def study_of(name: str) -> tuple[str, str]:
    """Returns the owner and the study of the name of a study."""
    if found := _STUDY_NAME.fullmatch(name):
        return part(found[1], 'owner'), part(found[2], 'study')
    raise _unlike(name, 'a study')


def trial_of(name: str) -> tuple[str, int]:
    """Returns the name of the study, and the number, of the name of a trial.

    Example:
        >>> trial_of('owners/me/studies/mine/trials/3')
        ('owners/me/studies/mine', 3)
    """
    found = _TRIAL_NAME.fullmatch(name)
    if found is None:
        raise _unlike(name, 'a trial')
    if not re.fullmatch(r'[1-9]\d{0,17}', found[2], re.ASCII):
        raise not_found(f'trial {found[2][:60]!a}')
    return found[1], int(found[2])


def study_of_operation(name: str) -> tuple[str, str]:
    """Returns the owner and the study of the name of a suggestion's operation."""
    if found := _OPERATION_NAME.fullmatch(name):
        return found[1], found[2]
    raise _unlike(name, 'an operation')


def key(owner: str, study: str) -> str:
    """Returns the name of a study in this service, as tokens and lists have it.

    Example:
        >>> key('paxtune', 'mine'), key('me', 'mine')
        ('mine', 'me/mine')
    """
    return study if owner == OWNER else f'{owner}/{study}'


def _unlike(name: str, what: str) -> VizierError:
    return invalid(f'{name[:60]!a} is not the name of {what}')
