"""Each rule finds a bad example and lets the good one pass."""

import pytest

from tests.architecture import rules
from tests.architecture.sources import Source


def texts(found: object) -> list[str]:
    return [violation.text for violation in found]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("mcp_servers.discovery", "from agents.models import Agent"),
        ("mcp_servers.discovery", "import agents"),
        ("mcp_servers.discovery", "def late():\n    from agents import calls"),
        ("mcp_servers.discovery", 'Agent = apps.get_model("agents", "Agent")'),
        ("mcp_servers.discovery", 'Agent = get_model("agents.Agent")'),
        ("mcp_servers.models.servers", 'owner = models.ForeignKey("agents.Agent")'),
        ("bonobot.accounts.models.organizations", "import mcp_servers.tool_names"),
        (
            "bonobot.ledger.writer.writer_thread",
            "from bonobot.accounts.models.organizations import User",
        ),
        ("bonobot.ledger.types", 'User = get_model("tenancy.User")'),
        ("bonobot.core.http.egress", "from bonobot.ledger import writer"),
        ("agents.tasks", "from bonobot.celery import app"),
        ("agents.sessions.loop", "from agents.workflows import runs"),
        ("agents.policies.rules", "from agents.calls.snapshots import CallSnapshot"),
        ("bonobot.accounts.tokens.services", "from bonobot.monitoring import health_endpoints"),
        (
            "agents.api.views",
            'view = import_string("bonobot.checks.check_settings")',
        ),
    ],
)
def test_an_upward_import_is_detected(module: str, text: str) -> None:
    assert texts(rules.upward_arrows([Source(module, text)]))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("bonobot.urls", "from agents.api import urls"),
        ("agents.gateway.endpoint", "from agents.calls.pipeline import make_call"),
        ("agents.calls.pipeline", "from mcp_servers.client.pool import connections"),
        ("agents.models.agents", 'server = models.ForeignKey("mcp_servers.Server")'),
        (
            "bonobot.accounts.admin",
            "from bonobot.ledger import changes\nimport bonobot.core.admin.theme",
        ),
        ("bonobot.core.http.egress", "from bonobot import __version__"),
        ("bonobot.core.db.database_url", 'FILE = "bonobot.sqlite3"'),
        ("mcp_servers.services", 'app.send_task("agents.tasks.run")'),
        ("mcp_servers.tool_names", 'EXAMPLE = "ask the agents. They know"'),
    ],
)
def test_a_downward_or_sideways_import_passes(module: str, text: str) -> None:
    assert not texts(rules.upward_arrows([Source(module, text)]))


def test_a_relative_import_is_resolved() -> None:
    package = Source("mcp_servers.presets", "from ...agents import calls", is_package=True)
    module = Source("mcp_servers.presets.loader", "from ...agents import calls")
    assert [mention.target for mention in module.imports] == ["agents.calls"]
    assert [mention.target for mention in package.imports] != ["mcp_servers.agents.calls"]


def test_a_relation_with_a_reverse_name_in_a_lower_layer_is_detected() -> None:
    assert rules.visible_downward_relations(
        [("agents.models.agents", "Binding.server", "mcp_servers.models.servers", False)]
    )


@pytest.mark.parametrize(
    "relation",
    [
        ("agents.models.agents", "Binding.server", "mcp_servers.models.servers", True),
        ("agents.models.agents", "Binding.agent", "agents.models.agents", False),
        (
            "bonobot.accounts.models.organizations",
            "User.groups",
            "django.contrib.auth.models",
            False,
        ),
    ],
)
def test_a_hidden_or_level_relation_passes(relation: tuple[str, str, str, bool]) -> None:
    assert not rules.visible_downward_relations([relation])


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "from django.conf import settings",
        "from pathlib import Path",
        "import httpx2",
        "def decide(path):\n    return open(path).read()",
        "from datetime import datetime\nnow = datetime.now()",
        "import datetime\nnow = datetime.datetime.now()",
        "from mcp_servers.models import Server",
    ],
)
def test_a_decision_module_with_effects_is_detected(text: str) -> None:
    models = Source("mcp_servers.models", "from django.db import models", is_package=True)
    decision = Source("agents.policies.decisions", text)
    assert texts(rules.impure_decisions([decision, models]))


def test_a_pure_decision_module_passes() -> None:
    decision = Source(
        "mcp_servers.scanning.definitions",
        "import re\nfrom dataclasses import dataclass\nfrom bonobot.core.problems import Problem",
    )
    problems = Source("bonobot.core.problems", "from collections.abc import Mapping")
    assert not texts(rules.impure_decisions([decision, problems]))


def test_other_modules_can_have_effects() -> None:
    assert not texts(rules.impure_decisions([Source("mcp_servers.discovery", "import os")]))


def test_a_second_importer_of_unfold_is_detected() -> None:
    text = "from unfold.admin import ModelAdmin"
    assert texts(rules.second_unfold_importers([Source("agents.admin.agents", text)]))
    assert not texts(rules.second_unfold_importers([Source("bonobot.core.admin.theme", text)]))


@pytest.mark.parametrize(
    "text",
    [
        "from mcp_servers.client.pool import connections",
        "from mcp_servers.client import pool",
        "import mcp_servers.client.pool",
        "from mcp.client.stdio import stdio_client",
    ],
)
def test_a_second_caller_of_upstream_servers_is_detected(text: str) -> None:
    assert texts(rules.second_upstream_callers([Source("agents.api.views", text)]))


def test_the_gateway_may_call_and_others_may_import_errors() -> None:
    pool = "from mcp_servers.client.pool import connections"
    errors = "from mcp_servers.client.errors import UpstreamError"
    assert not texts(
        rules.second_upstream_callers(
            [Source("agents.calls.pipeline", pool), Source("agents.api.views", errors)]
        )
    )


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("mcp_servers.health.check_servers", "import httpx2"),
        ("mcp_servers.health.check_servers", "from urllib.request import urlopen"),
        ("mcp_servers.health.check_servers", "import urllib.request"),
        ("agents.tasks", "import requests"),
        ("agents.tasks", "from pydantic_ai import direct"),
        ("mcp_servers.client.http", "import httpx2\nclient = httpx2.AsyncClient()"),
        ("mcp_servers.client.http", "from httpx2 import AsyncClient as C\nclient = C()"),
        ("agents.llm.interface", "import httpx2\nanswer = httpx2.get('http://x')"),
    ],
)
def test_a_second_creator_of_http_clients_is_detected(module: str, text: str) -> None:
    assert texts(rules.second_http_makers([Source(module, text)]))


def test_a_cache_whose_first_value_threads_compute_at_once_is_found() -> None:
    assert texts(rules.racing_caches([Source("agents.tasks", "from functools import cache")]))
    bounded = Source("agents.tasks", "from functools import cached_property, lru_cache")
    assert not texts(rules.racing_caches([bounded]))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("bonobot.core.http.egress", "import httpx2\nclient = httpx2.AsyncClient()"),
        ("mcp_servers.client.http", "import httpx2\nERRORS = (httpx2.TimeoutException,)"),
        ("agents.llm.interface", "from pydantic_ai import direct"),
        ("mcp_servers.import_export", "from urllib.parse import urlsplit"),
    ],
)
def test_users_of_a_guarded_client_pass(module: str, text: str) -> None:
    assert not texts(rules.second_http_makers([Source(module, text)]))


@pytest.mark.parametrize("module", ["agents.utils", "mcp_servers.helpers.names", "agents.misc"])
def test_a_module_named_utils_or_helpers_is_detected(module: str) -> None:
    assert texts(rules.banned_module_names([Source(module, "")]))


@pytest.mark.parametrize(
    "text",
    [
        "from asgiref.sync import async_to_sync\nasync_to_sync(f)()",
        "import asyncio\nasyncio.run(f())",
        "rows = Server.objects.filter(a=1).select_for_update()",
    ],
)
def test_a_banned_call_is_detected(text: str) -> None:
    assert texts(rules.banned_calls([Source("agents.sessions.loop", text)]))
    assert not texts(rules.banned_calls([Source("agents.sessions.loop", "import asyncio")]))


@pytest.mark.parametrize("expected", ["ValueError", "(TypeError, ValueError)"])
def test_a_parser_that_fails_for_deep_json_is_detected(expected: str) -> None:
    parser = "import json\ntry:\n    value = [json.loads(text)]\nexcept {}:\n    value = None"
    context = "import json\nwith suppress{}:\n    json.loads(text)"
    for text in (parser.format(expected), context.format(f"({expected.strip('()')})")):
        for names, is_found in ((text, True), (text.replace("Value", "Recursion", 1), False)):
            source = Source("agents.sessions.loop", names)
            assert bool(texts(rules.shallow_json_parsers([source]))) == is_found
        both = text.replace("ValueError", "ValueError, RecursionError", 1).replace(
            "except ValueError, RecursionError", "except (ValueError, RecursionError)"
        )
        assert not texts(rules.shallow_json_parsers([Source("agents.sessions.loop", both)]))


def test_rows_are_locked_in_one_place() -> None:
    text = "rows = Server.objects.filter(a=1).select_for_update()"
    assert not texts(rules.banned_calls([Source("bonobot.core.db.transactions", text)]))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import time\ntime.sleep(0.1)", True),
        ("from asyncio import sleep as pause\npause(delay)", True),
        ("import asyncio\nasyncio.sleep(0)", False),
        ("import asyncio\nasyncio.Event().wait()", False),
    ],
)
def test_a_test_that_sleeps_is_detected(text: str, found: bool) -> None:
    assert (
        bool(texts(rules.sleeping_tests([Source("tests.agents.calls.test_pipeline", text)])))
        is found
    )
    assert not texts(rules.sleeping_tests([Source("tests.agents.slow_server", text)]))


def test_a_long_module_is_detected() -> None:
    assert texts(rules.long_modules([Source("agents.calls.pipeline", "\n" * 701)]))
    assert not texts(rules.long_modules([Source("agents.calls.pipeline", "\n" * 700)]))


def test_a_long_function_is_detected_and_its_docstring_doesnt_count() -> None:
    body = "    x = 1\n" * 49
    assert not texts(rules.long_functions([Source("agents.calls.pipeline", f"def f():\n{body}")]))
    documented = f'def f():\n    """One.\n\n    Two.\n    """\n{body}'
    assert not texts(rules.long_functions([Source("agents.calls.pipeline", documented)]))
    assert texts(
        rules.long_functions([Source("agents.calls.pipeline", f"def f():\n{body}    y = 2\n")])
    )


@pytest.mark.parametrize("module", ["agents.asking", "mcp_servers.watched", "agents.llm.framing"])
def test_a_module_named_by_a_participle_is_detected(module: str) -> None:
    assert texts(rules.participle_module_names([Source(module, "")]))


@pytest.mark.parametrize("module", ["agents.approvals", "bonobot.core.telemetry.logging"])
def test_a_module_named_by_a_noun_passes(module: str) -> None:
    assert not texts(rules.participle_module_names([Source(module, "")]))


@pytest.mark.parametrize("second", ["agents.budget", "agents.budgett", "agents.budgetz"])
def test_modules_that_differ_by_a_letter_are_detected(second: str) -> None:
    assert texts(rules.similar_module_names([Source("agents.budgets", ""), Source(second, "")]))


def test_modules_of_two_packages_can_have_the_same_name() -> None:
    sources = [Source("agents.cli.tokens", ""), Source("agents.api.tokens", "")]
    assert not texts(rules.similar_module_names(sources))


def test_a_duplicate_class_name_is_detected() -> None:
    sources = [Source("agents.one", "class Asked: ..."), Source("agents.two", "class Asked: ...")]
    assert texts(rules.duplicate_class_names(sources))


@pytest.mark.parametrize("name", ["_told", "found", "merged", "_one"])
def test_a_function_named_by_a_participle_is_detected(name: str) -> None:
    assert texts(rules.bare_function_names([Source("agents.one", f"def {name}(): ...")]))


@pytest.mark.parametrize("name", ["notify_person", "_find", "is_closed", "read"])
def test_a_function_named_by_a_verb_passes(name: str) -> None:
    assert not texts(rules.bare_function_names([Source("agents.one", f"def {name}(): ...")]))
