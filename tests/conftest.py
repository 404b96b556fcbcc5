"""What all tests share."""

import os
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

# The same examples every time, and no deadline: how long an example takes depends on the machine.
hypothesis.settings.register_profile(
    'paxtune',
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile('paxtune')


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, 'wasxfail'):
        _fail_where_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_where_skipped(report)
    return report


def _fail_where_skipped(report: Any) -> None:
    """In CI a test that is skipped is a test that nobody runs."""
    if report.skipped and os.environ.get('CI') == 'true':
        report.outcome = 'failed'
        report.longrepr = f'skipped in CI: {report.longrepr}'
