"""Reports from the processes of a parallel run to the one that distributes the tests.

For each test, xdist sends six messages; packing and reading them takes longer than many tests.
Nobody needs three of those of a test that passes.
"""

from typing import Any

import pytest


def pytest_sessionstart(session: pytest.Session) -> None:
    """Send less, unless an option shows when each test starts or how long its phases take."""
    config, options = session.config, session.config.option
    if not hasattr(config, "workerinput") or options.verbose > 0:
        return
    if options.durations or options.xmlpath:
        return
    sender = next(
        plugin
        for plugin in config.pluginmanager.get_plugins()
        if type(plugin).__name__ == "WorkerInteractor"  # xdist doesn't export it
    )
    send = sender.sendevent

    def send_needed(name: str, **fields: Any) -> None:
        report = fields.get("data", {}) if name == "testreport" else {}
        is_phase = report.get("when") in ("setup", "teardown") and report["outcome"] == "passed"
        if name != "logstart" and not is_phase:
            send(name, **fields)

    sender.sendevent = send_needed
