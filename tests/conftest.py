"""Fails a run in which a test was skipped, where nothing may be skipped (`make test`).

Also what several tests share: a PostgreSQL server, a browser, the rules of property tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from postgres_server import PostgresServer

# Property tests judge results, never time, and a run can be repeated. Other examples each time:
# pytest --hypothesis-profile=explore
ANY_TIME: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **ANY_TIME)
settings.register_profile("explore", **ANY_TIME)
settings.load_profile("repeatable")

NOT_RUN = ("skipped", "xfailed", "xpassed")


def not_run(config: pytest.Config) -> list[str]:
    """Say of each test that did not simply pass or fail where it is and why."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or os.environ.get("RECOLLECT_NO_SKIPS") != "1":
        return []  # a worker of xdist has no reporter: its controller sees all reports
    return [
        f"{outcome} {report.nodeid}: {reason(report)}"
        for outcome in NOT_RUN
        for report in reporter.stats.get(outcome, [])
    ]


def reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    return getattr(report, "wasxfail", "") or "no reason given"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if not_run(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if lines := not_run(config):
        terminalreporter.section("RECOLLECT_NO_SKIPS=1: every test must run", red=True)
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for the tests of this process; a test uses a schema of its own in it."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def browser() -> Iterator[Any]:
    from browser import launched  # here, because most tests do without Playwright

    with launched() as opened:
        yield opened
