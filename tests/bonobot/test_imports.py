"""Heavy libraries are loaded on demand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from bonobot.__main__ import SETTINGS_VARIABLE
from tests import factories
from tests.parts import ROOT
from tests.processes import build_environment

# Each takes more than 20 ms, and no command needs all of them.
HEAVY_LIBRARIES = frozenset(
    {
        *("anthropic", "boto3", "botocore", "drf_spectacular.openapi", "genai_prices", "h11"),
        *("httpcore2", "httpx2", "jsonschema", "jwt", "mcp", "nh3", "numpy", "openai"),
        *("opentelemetry", "prometheus_client", "pydantic", "pydantic_ai", "pydantic_core"),
        *("referencing", "rest_framework.views", "rich", "uvicorn", "cryptography.x509"),
    }
)
# Our own packages that import them, or many modules: connections, pages, sessions, REST.
HEAVY_PACKAGES = frozenset(
    {
        *("agents.admin.agents", "agents.builtin_tools.registry", "agents.calls.pipeline"),
        *("agents.admin.site", "agents.gateway.transports", "agents.services"),
        *("agents.sessions.loop", "bonobot.core.http.egress", "bonobot.core.runtime"),
        *("bonobot.urls", "mcp_servers.client.pool", "mcp_servers.discovery"),
        *("mcp_servers.scanning.definitions", "mcp_servers.schemas", "mcp_servers.services"),
    }
)
# Commands that only read rows need neither jobs nor the apps of the admin, REST and sign-in.
UNREAD_LIBRARIES = frozenset(
    {
        *("allauth", "celery", "django.contrib.admin", "django.views.debug", "kombu", "unfold"),
        *("rest_framework", "yaml"),
    }
)
# The overview of the commands doesn't even load models.
MODEL_LIBRARIES = frozenset({"celery", "kombu", "django.db.models.base", "agents.models", "yaml"})

PRINT_MODULES = """
import json, sys
sys.stdout.write("\\n" + json.dumps(sorted(sys.modules)))
"""
SET_UP = """
import os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "bonobot.settings"
django.setup()
"""
RUN_COMMAND = "from bonobot.__main__ import main\ntry:\n    main({})\nexcept SystemExit:\n    pass"


def list_loaded_modules(code: str) -> set[str]:
    """Return the modules that a new process has loaded after running the code."""
    result = subprocess.run(
        [sys.executable, "-c", code + PRINT_MODULES],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        # As in a shell: a command may choose its settings.
        env={
            name: value for name, value in build_environment().items() if name != SETTINGS_VARIABLE
        },
    )
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_the_packages_of_the_list_exist() -> None:
    """With a renamed module these tests would test nothing."""
    paths = {name: ROOT / name.replace(".", "/") for name in HEAVY_PACKAGES}
    missing = [
        name
        for name, path in paths.items()
        if not path.with_suffix(".py").is_file() and not (path / "__init__.py").is_file()
    ]
    assert missing == []


def test_the_setup_of_the_apps_loads_no_heavy_module() -> None:
    modules = list_loaded_modules(SET_UP)
    assert not modules & (HEAVY_LIBRARIES | HEAVY_PACKAGES)
    assert "agents.models" in modules


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_version_and_overview_load_no_models(argument: str) -> None:
    modules = list_loaded_modules(RUN_COMMAND.format([argument]))
    assert not modules & (HEAVY_LIBRARIES | HEAVY_PACKAGES | MODEL_LIBRARIES)


@pytest.mark.django_db(transaction=True)
def test_the_list_of_servers_loads_nothing_that_connects_to_them() -> None:
    factories.create_http_server(factories.create_organization(), "http://127.0.0.1:9/mcp")
    modules = list_loaded_modules(RUN_COMMAND.format(["mcp", "list"]))
    assert not modules & (HEAVY_LIBRARIES | HEAVY_PACKAGES | UNREAD_LIBRARIES)
    assert "mcp_servers.cli.servers" in modules
    assert "mcp_servers.cli.presets" not in modules, "the verbs of other modules"


def test_the_web_process_loads_no_package_that_it_does_not_use() -> None:
    modules = list_loaded_modules(SET_UP + "import bonobot.asgi")
    assert not modules & {"markdown", "requests", "urllib3"}
    assert connection.vendor == "postgresql" or "psycopg" not in modules
    assert "agents.gateway.transports" in modules


def test_a_command_that_only_reads_says_that_the_database_isnt_migrated(tmp_path: Path) -> None:
    environment = build_environment(
        {"BONOBOT_VAR": str(tmp_path), "DATABASE_URL": f"sqlite:///{tmp_path / 'empty.sqlite3'}"}
    )
    result = subprocess.run(
        [sys.executable, "-m", "bonobot", "mcp", "list"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert result.returncode == 1
    assert "database_unavailable" in result.stderr
    assert "Traceback" not in result.stderr
