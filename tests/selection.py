"""Which tests run, and in which order.

`--quick` (`make quick`) selects what a developer runs before each commit: pure and service tests,
and the one test in which a call goes through the whole product.

Tests marked `whole` take long, and fail for few changes: builds, commands of the documentation,
generated requests, pages with thousands of tools, programs of others, and the browser's tests of
anything but the main path. `TEST_SUITE=whole` runs them, as CI does once in a run. CI's other run,
with PostgreSQL, has those marked `whole("postgres")`.
With PostgreSQL, what doesn't depend on the database or the broker is left out (`is_for_postgres`).
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest import TestCase

import pytest
from hypothesis import settings

from tests.parts import PARTS

FOLDER = Path(__file__).parent
WHOLE = os.environ.get("TEST_SUITE") == "whole"
# Files with much work, and folders of such files. They begin first, the longest before all others
# (with xdist's `--no-loadscope-reorder`, which the Makefile passes), so that no process waits for
# another at the end of a run: at least 7 s of processor time, by a measurement of each file.
LONG = (
    "end_to_end/test_screens_of_objects.py",
    "end_to_end/test_screens.py",
    "docs/test_commands.py",
    "conformance/",
    "end_to_end/test_admin.py",
    "bonobot/test_admin_pages.py",
    "bonobot/test_principal_matrix",
    "bonobot/test_api_schemathesis.py",
    "agents/test_preset_",
    "agents/cli/test_every_command.py",
    "agents/sessions/test_third_party_servers.py",
    "mcp_servers/client/test_killed_installations.py",
    "bonobot/test_canaries.py",
    "bonobot/management/commands/test_up.py",
    "end_to_end/",
    "bonobot/test_api_matrix.py",
    "docs/test_site.py",
    "bonobot/test_admin_isolation.py",
    "upgrades/",
    "bonobot/test_wheel.py",
    "bonobot/test_list_queries.py",
    "docs/",
    "bonobot/test_translations.py",
)
# The same of what `--quick` runs in part.
LONG_TOO = (
    "bonobot/accounts/views/test_login.py",
    "agents/test_server_imports.py",
    "bonobot/test_api_clients.py",
    "bonobot/accounts/sso/test_sign_in.py",
    "agents/admin/test_site.py",
    "bonobot/ledger/usage/test_build_rollups_dimensions.py",
    "agents/test_call_activity.py",
    "agents/test_doctor_checks.py",
    "agents/test_first_run.py",
    "mcp_servers/client/",
    "agents/gateway/",
    "bonobot/core/cli/",
)
# Files that start the product or real servers, are about what is built from it, send requests to
# the admin or to REST, or take long.
NOT_QUICK = (
    "agents/gateway/",
    "agents/llm/providers/test_all_providers.py",
    "agents/test_call_activity.py",
    "agents/test_first_run.py",
    "agents/test_search_isolation.py",
    "agents/test_server_imports.py",
    "architecture/test_house.py",
    "bonobot/accounts/sso/test_account_takeover.py",
    "bonobot/accounts/sso/test_sign_in",
    "bonobot/accounts/test_account_emails",
    "bonobot/accounts/test_invitations.py",
    "bonobot/accounts/test_password_reset",
    "bonobot/accounts/test_profiles.py",
    "bonobot/accounts/test_second_factor",
    "bonobot/accounts/test_sign_in_attacks.py",
    "bonobot/core/db/test_kept_template.py",
    "bonobot/core/documentation/test_pages.py",
    "bonobot/ledger/test_actor_names.py",
    "bonobot/ledger/usage/test_build_rollups_dimensions.py",
    "bonobot/management/test_command_groups.py",
    "bonobot/notifications/test_admin.py",
    "bonobot/notifications/test_api.py",
    "bonobot/processes/",
    "bonobot/test_admin_",
    "bonobot/test_api",
    "bonobot/test_apps.py",
    "bonobot/test_checks.py",
    "bonobot/test_imports.py",
    "bonobot/test_internal_addresses.py",
    "bonobot/test_main.py",
    "bonobot/test_principal_matrix.py",
    "bonobot/test_stored_secrets",
    "deploy/",
    "mcp_servers/client/",
    "mcp_servers/oauth_client/",
    "mcp_servers/presets/test_enabled_presets.py",
    "mcp_servers/scanning/test_definitions_attack_resemblance.py",
    "mcp_servers/schemas/test_subprocess_pool.py",
    "mcp_servers/schemas/test_validate_arguments_fast_path.py",
    "mcp_servers/test_stderr_log.py",
)
# Folders of tests of interfaces, which `--quick` leaves out: their services are tested below them.
INTERFACES = frozenset({"admin", "api", "cli", "views"})
# What these files check doesn't depend on the database: sources, texts, builds and documentation,
# who may see or do what, labels and versions of what routes return, attacks on forms, commands,
# programs in a sandbox, what a browser shows, protocols and headers, validation of settings,
# programs of others, and what an original specification asks for.
WITHOUT_DATABASE = (
    "agents/admin/test_agent_tools_tabs.py",
    "agents/builtin_tools/",
    "agents/calls/test_inspect_result.py",
    "agents/calls/test_pipeline_refused_headers.py",
    "agents/calls/test_pipeline_third_party_servers.py",
    "agents/cli/",
    "agents/gateway/organization_server/test_configuration_labels.py",
    "agents/gateway/organization_server/test_error_labels.py",
    "agents/gateway/organization_server/test_more_label_routes.py",
    "agents/gateway/organization_server/test_session_labels.py",
    "agents/gateway/organization_server/test_text_labels.py",
    "agents/gateway/test_batches.py",
    "agents/gateway/test_browser_origins.py",
    "agents/gateway/test_catalog_stability.py",
    "agents/gateway/test_client_config_snippets",
    "agents/gateway/test_eras.py",
    "agents/gateway/test_errors.py",
    "agents/gateway/test_extensions.py",
    "agents/gateway/test_external_issuer_forgeries.py",
    "agents/gateway/test_malformed_requests.py",
    "agents/gateway/test_principal_isolation.py",
    "agents/gateway/test_protocol_versions.py",
    "agents/gateway/test_token_passthrough.py",
    "agents/gateway/test_transports.py",
    "agents/gateway/test_unsolicited_messages.py",
    "agents/sessions/test_compaction.py",
    "agents/sessions/test_model_retries_and_fallback",
    "agents/sessions/test_output_schemas.py",
    "agents/sessions/test_tool_search.py",
    "agents/test_flow_label_laundering_servers.py",
    "agents/test_preset_",
    "agents/test_sandboxed_servers.py",
    "agents/test_search_isolation.py",
    "architecture/",
    "bonobot/accounts/sso/test_sign_in_attacks.py",
    "bonobot/accounts/test_second_factor",
    "bonobot/accounts/test_sign_in_attacks.py",
    "bonobot/core/documentation/",
    "bonobot/core/http/",
    "bonobot/oauth_server/test_attacks.py",
    "bonobot/oauth_server/test_client_metadata_over_tls.py",
    "bonobot/oauth_server/test_client_registration",
    "bonobot/oauth_server/test_consent.py",
    "bonobot/oauth_server/test_refusals.py",
    "bonobot/processes/test_http_protocol",
    "bonobot/test_admin_isolation.py",
    "bonobot/test_admin_list_versions.py",
    "bonobot/test_admin_versions.py",
    "bonobot/test_api_action_versions.py",
    "bonobot/test_api_matrix.py",
    "bonobot/test_api_schemathesis.py",
    "bonobot/test_api_text_labels.py",
    "bonobot/test_api_versions.py",
    "bonobot/test_canaries.py",
    "bonobot/test_internal_addresses.py",
    "bonobot/test_packaging.py",
    "bonobot/test_principal_matrix",
    "bonobot/test_response_headers.py",
    "bonobot/test_stored_secrets",
    "bonobot/test_translations.py",
    "deploy/",
    "docs/",
    "end_to_end/test_pages_without_eval.py",
    "end_to_end/test_screens.py",
    "end_to_end/test_screens_of_objects.py",
    "mcp_servers/cli/",
    "mcp_servers/client/test_sandbox",
    "mcp_servers/oauth_client/test_authorization_server_faults.py",
    "mcp_servers/oauth_client/test_dpop.py",
    "mcp_servers/openapi/test_discovery.py",
    "mcp_servers/presets/test_allowed_folders.py",
    "mcp_servers/presets/test_catalog_",
    "mcp_servers/scanning/",
    "mcp_servers/test_auth_config.py",
    "mcp_servers/test_definition_change_attacks.py",
    "mcp_servers/test_sandbox_settings.py",
    "mcp_servers/test_server_config.py",
    "mcp_servers/test_stdio_validation.py",
    "seeds/",
)
# The browser's tests that PostgreSQL and Redis are needed for: pages that a worker updates.
BROWSER_ON_POSTGRES = ("end_to_end/test_admin.py", "end_to_end/test_approvals.py")
# Tests in these files use no row of the test database, but databases or brokers of their own.
OWN_DATABASES = (
    "agents/test_doctor_checks.py",
    "bonobot/core/db/",
    "bonobot/core/test_redis_bus.py",
    "bonobot/core/test_runtime_orm_threads.py",
    "bonobot/jobs/",
    "bonobot/management/commands/test_up.py",
    "bonobot/monitoring/",
    "bonobot/settings/",
    "bonobot/test_main.py",
    "upgrades/",
)
# One question to an agent: session, model, call pipeline, a real stdio server, audit log.
ONE_CALL = "agents/sessions/test_loop.py::test_a_message_is_answered_with_a_real_server"
# A test with one of these works on committed rows, mostly beside other processes.
COMMITS = {"transactional_db", "module_rows", "running", "module_running"}
# A test with one of these, or with pytest-django's mark, reads or writes rows.
ROWS = COMMITS | {"db", "django_db_setup"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="pure and service tests, and one call through all"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Try few examples of each property with `--quick`."""
    if config.getoption("quick"):
        suite = settings.get_profile("suite")
        settings.register_profile("quick", suite, max_examples=10)
        settings.load_profile("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't even import what `--quick` never runs, and what the run with SQLite has checked."""
    ignored: tuple[str, ...] = ()
    if config.getoption("quick"):
        ignored += (*LONG, *NOT_QUICK)
        if collection_path.is_relative_to(FOLDER) and collection_path.name in INTERFACES:
            return True
    if _is_on_postgres():
        ignored += WITHOUT_DATABASE
    return True if _starts_with(collection_path, ignored) else None


def pytest_report_header() -> list[str]:
    lines = [] if WHOLE else ["With TEST_SUITE=whole only: tests marked `whole`, most screens"]
    if _is_on_postgres():
        omitted = ", ".join(WITHOUT_DATABASE)
        lines.append(f"With SQLite only: tests without rows or in Chromium, {omitted}")
    return lines


def _is_on_postgres() -> bool:
    return os.environ.get("DATABASE_URL", "").startswith("postgres")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select and sort; what takes long begins first, all else keeps its order."""
    if config.getoption("quick"):
        _select(config, items, is_quick)
    if not WHOLE:
        _select(config, items, is_in_part)
    if _is_on_postgres():
        _select(config, items, is_for_postgres)
    items.sort(key=lambda item: _place(item.path))


def _select(
    config: pytest.Config, items: list[pytest.Item], is_selected: Callable[[pytest.Item], bool]
) -> None:
    """Deselect all other tests."""
    deselected = [item for item in items if not is_selected(item)]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if is_selected(item)]


@cache  # ten thousand tests lie in a few hundred files
def _place(path: Path) -> int:
    """Return the place of a file among those that begin first; the last one for all others."""
    first = (*LONG, *LONG_TOO)
    return next((n for n, prefix in enumerate(first) if _starts_with(path, (prefix,))), len(first))


def _starts_with(path: Path, prefixes: tuple[str, ...]) -> bool:
    """Return whether a path in the tests' folder starts with one of the prefixes."""
    name, folder = str(path), f"{FOLDER}{os.sep}"  # paths themselves compare slowly
    return name.startswith(folder) and name.startswith(prefixes, len(folder))


def is_in_part(item: pytest.Item) -> bool:
    """Return whether a test also runs without `TEST_SUITE=whole`."""
    mark = item.get_closest_marker("whole")
    return mark is None or (_is_on_postgres() and "postgres" in mark.args)


def is_quick(item: pytest.Item) -> bool:
    """Return whether a test starts no process and commits no row, or is the one call."""
    if item.nodeid.endswith(ONE_CALL):
        return True
    if COMMITS & set(getattr(item, "fixturenames", ())):
        return False
    if any(part.group in item.keywords for part in PARTS) or "worker" in item.keywords:
        return False
    mark = item.get_closest_marker("django_db")
    return not (mark and mark.kwargs.get("transaction"))


def is_for_postgres(item: pytest.Item) -> bool:
    """Return whether the database or the broker can change what a test finds."""
    if "browser" in item.keywords:
        return _starts_with(item.path, BROWSER_ON_POSTGRES)
    if {"postgres", "redis", "worker", "django_db"} & set(item.keywords):
        return True
    if isinstance(item, pytest.Function) and item.cls and issubclass(item.cls, TestCase):
        return True
    if ROWS & set(getattr(item, "fixturenames", ())):
        return True
    return _starts_with(item.path, OWN_DATABASES)
