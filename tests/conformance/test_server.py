"""The official conformance suite tests the gateway, in front of our own and the SDK's server."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from agents.flow_labels.services import clear_token_labels
from bonobot.accounts.models import Token
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.approved_server import ApprovedServer, create_approved_server
from tests.conformance.bearer_proxy import door
from tests.conformance.scenarios import (
    BEYOND,
    HANDSHAKE,
    MODERN,
    NEED_APPROVAL,
    SERVER_SKILLS,
    TASKS,
    TOLERATED,
)
from tests.conformance.suite import CONFORMANCE, SuiteResult, required, run_server_suite
from tests.conformance_server import OUR_SERVER, SDK_SERVER, serve_everything
from tests.parts import ROOT
from tests.processes import Web

pytestmark = [pytest.mark.npm, pytest.mark.django_db(transaction=True)]

needs_all_scenarios = pytest.mark.skipif(
    not CONFORMANCE, reason="`make conformance` runs all scenarios"
)
PAGE = ROOT / "docs" / "conformance.md"
SHOWN = 2_000  # characters of the end of the suite's output, which has the summary
COUNTS = {MODERN: 37, HANDSHAKE: 30}
NO_LABELS, SUGGESTED = "no labels", "suggested labels"
# Upstream servers, and the flow labels of their definitions.
SETUPS = [
    *((revision, OUR_SERVER, labels) for revision in COUNTS for labels in (NO_LABELS, SUGGESTED)),
    *((revision, SDK_SERVER, NO_LABELS) for revision in COUNTS),
    (MODERN, SDK_SERVER, SUGGESTED),
]
# With the test of calls that need approval, each two of revision, server, and labels meet once.
PAIRS = [
    (MODERN, OUR_SERVER, SUGGESTED),
    (HANDSHAKE, OUR_SERVER, NO_LABELS),
    (MODERN, SDK_SERVER, NO_LABELS),
]


@pytest.fixture
def upstream(server: str, tmp_path: Path) -> Iterator[str]:
    with serve_everything(tmp_path, server) as url:
        yield url


@pytest.fixture
def published_server(upstream: str, labels: str) -> ApprovedServer:
    """Register and approve the server."""
    return create_approved_server(upstream, suggested_labels=labels == SUGGESTED)


@pytest.fixture
def gateway(
    published_server: ApprovedServer, start_web: Callable[..., Web], free_port: int
) -> Iterator[str]:
    """Put Bonobot in front of the server, and a proxy that adds the token in front of Bonobot."""
    url = f"http://127.0.0.1:{free_port}"
    web = start_web(BONOBOT_URL=url)
    with door(free_port, web.port, published_server.token):
        yield url + published_server.paths[0]


def assert_conformance(result: SuiteResult, expected: Iterable[str]) -> None:
    """Assert that scenarios passed without warnings."""
    faults = [
        line
        for line in result.faults()
        if line.startswith(tuple(f"{expected_name}:" for expected_name in expected))
    ]
    output = result.output[-SHOWN:]
    assert [line for line in faults if not is_tolerated(line)] == []
    assert [name for name in expected if name not in result.passed()] == [], output
    assert result.status == 0, output


def is_tolerated(line: str) -> bool:
    """Return whether a fault violates only a recommendation."""
    return any(f": {name}: WARNING" in line for name in TOLERATED)


@pytest.fixture
def scenarios(revision: str) -> list[str]:
    """Return the scenarios that a revision requires of servers."""
    required_scenarios = required("Server", revision)
    assert len(required_scenarios) == COUNTS[revision]
    return required_scenarios


def list_additional_scenarios(server: str, names: Iterable[str]) -> list[str]:
    """Return those of the scenarios for which the server has fixtures; the SDK's has no tasks."""
    return [name for name in names if server == OUR_SERVER or name not in TASKS]


@pytest.mark.skipif(
    CONFORMANCE != "whole", reason="what passes behind the gateway has its fixtures"
)
@pytest.mark.parametrize("server", [OUR_SERVER, SDK_SERVER])
@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_the_upstream_server_has_every_fixture(
    revision: str, server: str, scenarios: list[str], upstream: str, tmp_path: Path
) -> None:
    result = run_server_suite(upstream, tmp_path, "--requirements", revision)
    additional = TASKS if revision == MODERN else ()
    assert_conformance(result, [*scenarios, *list_additional_scenarios(server, additional)])


@needs_all_scenarios
@pytest.mark.parametrize(
    ("revision", "server", "labels"), SETUPS if CONFORMANCE == "whole" else PAIRS
)
def test_the_gateway_conforms(
    revision: str, server: str, scenarios: list[str], gateway: str, tmp_path: Path
) -> None:
    assert_conformance(
        run_server_suite(gateway, tmp_path, "--requirements", revision),
        [*scenarios, *list_additional_scenarios(server, BEYOND[revision])],
    )


@needs_all_scenarios
@pytest.mark.parametrize(("server", "labels"), [(OUR_SERVER, NO_LABELS)])
def test_skills_are_served(gateway: str, tmp_path: Path) -> None:
    for scenario in SERVER_SKILLS:
        arguments = ("--scenario", scenario, "--spec-version", MODERN, "--force")
        assert_conformance(run_server_suite(gateway, tmp_path / scenario, *arguments), [scenario])


@needs_all_scenarios
@pytest.mark.parametrize(("revision", "server", "labels"), [(HANDSHAKE, SDK_SERVER, SUGGESTED)])
def test_only_calls_that_need_approval_dont_pass_with_suggested_labels(
    revision: str,
    scenarios: list[str],
    published_server: ApprovedServer,
    gateway: str,
    tmp_path: Path,
) -> None:
    result = run_server_suite(gateway, tmp_path / "all", "--requirements", revision)
    assert {*scenarios} - {*result.passed()} == {*NEED_APPROVAL}
    assert AuditRow.objects.filter(code="approval_required").count() == len(NEED_APPROVAL)
    administrator = factories.build_administrator(published_server.organization)
    for name in NEED_APPROVAL:
        clear_token_labels(administrator, Token.objects.get(name="suite"))
        alone = run_server_suite(
            gateway, tmp_path / name, "--scenario", name, "--spec-version", revision
        )
        assert_conformance(alone, [name])


@needs_all_scenarios
@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_the_gateway_page_lists_every_required_scenario(
    revision: str, scenarios: list[str]
) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("# Conformance: Bonobot as a server")[2]
    table = section.partition(f"## {revision}")[2].partition("## ")[0]
    assert re.findall(r"^\| `(\S+)` \|", table, re.MULTILINE) == scenarios
