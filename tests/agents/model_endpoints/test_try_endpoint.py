"""Testing a model endpoint, with the same result over REST and in the admin."""

import pytest

from agents.budgets.services import BudgetLine, set_budgets
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.model_endpoints.try_endpoint import try_endpoint
from agents.models import ModelEndpoint
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden, Problem
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories, processes, rest

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def acme() -> Organization:
    organization = factories.create_organization()
    save_endpoint(
        factories.build_administrator(organization),
        ModelEndpointSpec(name="Offline", kind="offline", model="offline"),
    )
    return organization


def create_unreachable_endpoint(organization: Organization) -> ModelEndpoint:
    """Create an endpoint whose port is closed."""
    url = f"http://127.0.0.1:{processes.find_unused_port()}/v1"
    spec = ModelEndpointSpec(
        name="Gone", kind="openai", model="m", base_url=url, allow_private=True
    )
    endpoint: ModelEndpoint = save_endpoint(factories.build_administrator(organization), spec)
    return endpoint


def test_an_answering_model_is_reported_with_its_latency_and_recorded(
    acme: Organization,
) -> None:
    endpoint = ModelEndpoint.objects.get()
    trial = try_endpoint(factories.build_administrator(acme), endpoint)
    assert trial.answer
    row = AuditRow.objects.get(action="model_endpoint_tested")
    assert (row.outcome, row.event_type, row.resource_id) == ("ok", "model", "offline")
    assert row.input_tokens == (trial.usage.input_tokens if trial.usage else 0)


def test_a_failing_model_is_reported_with_a_remedy(acme: Organization) -> None:
    endpoint = create_unreachable_endpoint(acme)
    operator = rest.as_role(acme, Role.OPERATOR)
    response = operator.post(f"model-endpoints/{endpoint.pk}/test")
    assert response.status == 200, response
    assert (response.json["status"], response.json["error"]["code"]) == (
        "error",
        "model_unreachable",
    )
    assert response.json["error"]["remedy"]
    assert AuditRow.objects.get(action="model_endpoint_tested").outcome == "error"
    page = admin_client.sign_in(acme, Role.OPERATOR).post("agents_modelendpoint_test", endpoint.pk)
    assert "model_unreachable" in page


def test_the_admin_shows_the_answer(acme: Organization) -> None:
    endpoint = ModelEndpoint.objects.get()
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    assert admin_client.build_url("agents_modelendpoint_test", endpoint.pk) in operator.get(
        "agents_modelendpoint_changelist"
    )
    assert "Responded in" in operator.post("agents_modelendpoint_test", endpoint.pk)
    response = rest.as_role(acme, Role.OPERATOR).post(f"model-endpoints/{endpoint.pk}/test")
    assert (response.json["status"], response.json["error"]) == ("ok", None)


def test_an_exhausted_budget_and_the_kill_switch_deny_the_test(acme: Organization) -> None:
    endpoint, administrator = ModelEndpoint.objects.get(), factories.build_administrator(acme)
    set_budgets(administrator, acme, [BudgetLine("tokens", "total", 1)])
    with pytest.raises(Problem) as refused:
        try_endpoint(administrator, endpoint)
    assert refused.value.code == "budget_exhausted"
    set_budgets(administrator, acme, [])
    Organization.objects.update(halted_at="2026-01-01T00:00:00Z")
    with pytest.raises(Problem) as halted:
        try_endpoint(administrator, endpoint)
    assert halted.value.code == "kill_switch_enabled"


def test_a_role_without_permission_cant_test_a_model(acme: Organization) -> None:
    with pytest.raises(Forbidden):
        try_endpoint(factories.create_member(acme, Role.AUDITOR), ModelEndpoint.objects.get())
    assert not AuditRow.objects.filter(action="model_endpoint_tested").exists()
