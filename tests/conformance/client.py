"""Bonobot as the client of the official conformance suite; started as a module, with a URL.

The suite starts it once per scenario and checks its requests at a server of its own. Alone, it
creates a temporary installation; our own tests, which run dozens of scenarios, let it pass each one
to the process that runs the tests (`RELAY`, a loopback port).
"""

import http.client
import json
import os
import sys
import tempfile
from typing import Any

RELAY = "CONFORMANCE_RELAY"
# The URL that the suite expects of our client ID metadata document.
DOCUMENT = "https://conformance-test.local/client-metadata.json"
LONGEST_S = 120


def main() -> str:
    """Run the scenario that the environment names; return the error, empty if there is none."""
    scenario = {
        "url": sys.argv[-1],
        "scenario": os.environ["MCP_CONFORMANCE_SCENARIO"],
        "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}"),
    }
    relay = os.environ.get(RELAY)
    return _delegate(int(relay), scenario) if relay else _run_alone(scenario)


def _delegate(port: int, scenario: dict[str, Any]) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_S)
    connection.request("POST", "/", json.dumps(scenario))
    return connection.getresponse().read().decode()


def _run_alone(scenario: dict[str, Any]) -> str:
    with tempfile.TemporaryDirectory(prefix="bonobot-conformance-") as folder:
        os.environ["BONOBOT_VAR"] = folder
        os.environ["BONOBOT_WORKLOAD_TOKENS"] = f"{folder}/tokens"
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
            return play(**scenario)
        finally:
            runtime.close_runtime()
            writer_thread.close_writer()


if __name__ == "__main__":
    error = main()
    sys.stderr.write(error)
    sys.exit(1 if error else 0)
