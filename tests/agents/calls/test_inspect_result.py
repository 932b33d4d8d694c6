"""Results that violate the output schema of their tool are marked, for models and clients."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agents.calls.inspect_result import VIOLATION_META_KEY
from agents.calls.pipeline import CallOutcome
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.ledger.models import AuditRow
from tests.agents.gateway.upstream_server import OBJECT, Upstream, attach_upstream

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = {"content": [{"type": "text", "text": "21 degrees"}]}
WEATHER = {
    "type": "object",
    "properties": {"degrees": {"type": "integer"}, "list": {"type": "array"}},
    "required": ["degrees"],
}


@pytest.fixture
def upstream(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    upstream = Upstream("sky")
    tool = {"name": "weather", "inputSchema": OBJECT, "outputSchema": WEATHER}
    upstream.overrides["tools/list"] = {"tools": [tool]}
    with upstream.listening():
        attach_upstream(upstream, acme, helper)
        yield upstream


@pytest.mark.parametrize(
    ("structured", "words"),
    [
        ({"structuredContent": {"degrees": "21"}}, "$.degrees"),
        ({"structuredContent": {"degrees": "21", "list": list(range(5_000))}}, "$.degrees"),
        ({"structuredContent": []}, "$"),
        ({}, "missing"),
    ],
)
def test_a_result_that_violates_its_schema_is_marked(
    upstream: Upstream, call: Callable[..., CallOutcome], structured: dict[str, Any], words: str
) -> None:
    upstream.overrides["tools/call"] = {**TEXT, **structured}
    outcome = call("mcp_sky_weather")
    assert outcome.outcome == "ok"
    assert "21 degrees" in outcome.text
    assert "doesn't match the tool's output schema" in outcome.text
    assert words in outcome.result["_meta"][VIOLATION_META_KEY]
    row = AuditRow.objects.filter(event_type="call").latest("seq")
    assert words in json.loads(row.closed)["details"]["output_schema"]


@pytest.mark.parametrize(
    "result",
    [{**TEXT, "structuredContent": {"degrees": 21}}, {**TEXT, "isError": True}],
)
def test_results_that_match_and_errors_are_not_marked(
    upstream: Upstream, call: Callable[..., CallOutcome], result: dict[str, Any]
) -> None:
    upstream.overrides["tools/call"] = result
    outcome = call("mcp_sky_weather")
    assert outcome.text == "21 degrees"
    assert "_meta" not in outcome.result


@pytest.mark.parametrize(
    ("structured", "is_visible"),
    [
        ({"structuredContent": {"degrees": 21}}, True),
        ({"structuredContent": {"degrees": 21, "list": ["a\nb"]}}, True),
        ({"structuredContent": {"degrees": 21, "list": ["a\u200bb"]}}, False),
        ({"structuredContent": {"degrees": 21, "a\u200bb": 1}}, False),
        ({"structuredContent": {"degrees": 21, "list": ["a\x1b[8mb"]}}, False),
        ({"structuredContent": {"degrees": "21"}}, False),  # marked: it isn't the inspected one
    ],
)
def test_only_a_result_without_hidden_characters_is_known_to_be_visible(
    upstream: Upstream,
    call: Callable[..., CallOutcome],
    structured: dict[str, Any],
    *,
    is_visible: bool,
) -> None:
    upstream.overrides["tools/call"] = {**TEXT, **structured}
    assert call("mcp_sky_weather").is_visible is is_visible
