"""Bonobot as the client of the official conformance suite; started as a module, with a URL.

The suite starts it once per scenario, in which a server of its own watches what comes. By itself it
makes an installation of its own in a folder that is thrown away; our own tests, which play dozens
of scenarios, let it hand over to the process that runs them (`RELAY`, a port of the loopback).
"""

import http.client
import json
import os
import sys
import tempfile
from typing import Any

RELAY = "CONFORMANCE_RELAY"
# What the suite expects our client id metadata document to be called.
DOCUMENT = "https://conformance-test.local/client-metadata.json"
LONGEST_S = 120


def main() -> str:
    """Play the scenario that the environment names; returns what went wrong, blank if nothing."""
    part = {
        "url": sys.argv[-1],
        "scenario": os.environ["MCP_CONFORMANCE_SCENARIO"],
        "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}"),
    }
    relay = os.environ.get(RELAY)
    return _handed_over(int(relay), part) if relay else _alone(part)


def _handed_over(port: int, part: dict[str, Any]) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_S)
    connection.request("POST", "/", json.dumps(part))
    return connection.getresponse().read().decode()


def _alone(part: dict[str, Any]) -> str:
    with tempfile.TemporaryDirectory(prefix="bonobot-conformance-") as folder:
        os.environ["BONOBOT_VAR"] = folder
        os.environ["BONOBOT_OAUTH_CLIENT_ID"] = DOCUMENT
        os.environ["DJANGO_SETTINGS_MODULE"] = "bonobot.settings"
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        from bonobot.core import runtime
        from bonobot.ledger.writer import writer_thread
        from tests.conformance.play_scenario import play

        try:
            return play(**part)
        finally:
            runtime.close_runtime()
            writer_thread.close_writer()


if __name__ == "__main__":
    wrong = main()
    sys.stderr.write(wrong)
    sys.exit(1 if wrong else 0)
