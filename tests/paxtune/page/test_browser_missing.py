"""Machines without a browser."""

from pathlib import Path

import pytest

from tests.servers import chromium


def test_missing_browser_is_an_error_that_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(chromium.ChromiumMissingError, match='apt-get install chromium'):
        chromium.executable()
