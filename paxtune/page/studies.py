"""The page of the studies below a directory: their list, and each study at its own address."""

import re
from collections.abc import Iterable
from typing import Any

from paxtune.page import failures, widgets
from paxtune.page.front import Environ
from paxtune.page.live_studies import LiveStudies
from paxtune.page.server import Site, site_app
from paxtune.page.views.studies import VIEWS
from trainer.symbolic.errors import UserError

_ADDRESS = re.compile(r'/study/([^/]*)(/.*)?', re.DOTALL)


class StudiesPage:
    """Answers for the list of studies, and for each study below `/study/KEY/`."""

    def __init__(self, studies: LiveStudies) -> None:
        self._studies = studies
        root = widgets.encodable(studies.root)
        site = Site(studies.name, root, studies.version, VIEWS, studies, studies)
        self._list = site_app(site, studies.base_path)

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        """Answers a request."""
        found = _ADDRESS.fullmatch(environ['PATH_INFO'])
        if found is None:
            answer: Iterable[bytes] = self._list.server(environ, start_response)
            return answer
        key, path = found.groups()
        try:
            with self._studies.opened(key) as study:
                prefix = f'{self._studies.base_path}study/{key}'
                below = environ | {'SCRIPT_NAME': prefix, 'PATH_INFO': path or '/'}
                answer = study.app.server(below, start_response)
                return answer
        except UserError as error:
            return failures.answer(404, str(error))(environ, start_response)
