"""Model endpoints: keys are stored encrypted and never shown; URLs are checked like a server's."""

import re
from typing import Any

import pytest

from agents.models import ModelEndpoint
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.text.masking import MASK
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
FIELDS: dict[str, Any] = {
    "name": "Big",
    "kind": "openai",
    "base_url": "https://api.example.com/v1",
    "model": "big-1",
    "key": "geheim",
    "timeout_s": "60",
    "retries": "2",
    "fallback_on": "unavailable",
}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def operator(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def test_an_endpoint_is_created_with_an_encrypted_key(operator: admin_client.AdminClient) -> None:
    operator.post("agents_modelendpoint_add", **FIELDS)
    endpoint = ModelEndpoint.objects.get()
    assert endpoint.api_key.open() == "geheim"
    for page in (
        operator.get("agents_modelendpoint_changelist"),
        operator.get("agents_modelendpoint_change", endpoint.pk),
    ):
        assert "geheim" not in page


def test_the_mask_keeps_the_key(operator: admin_client.AdminClient) -> None:
    operator.post("agents_modelendpoint_add", **FIELDS)
    endpoint = ModelEndpoint.objects.get()
    assert MASK in operator.get("agents_modelendpoint_change", endpoint.pk)
    fields = FIELDS | {"name": "Bigger", "key": MASK}
    operator.post("agents_modelendpoint_change", endpoint.pk, **fields)
    endpoint.refresh_from_db()
    assert (endpoint.name, endpoint.api_key.open()) == ("Bigger", "geheim")


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"base_url": "http://127.0.0.1:11434/v1"}, "private_address"),
        ({"model": " "}, None),
        ({"allow_private": "on"}, "forbidden"),
        ({"base_url": ""}, "bad_url"),
    ],
)
def test_invalid_values_are_reported_and_nothing_is_written(
    operator: admin_client.AdminClient, values: dict[str, str], code: str | None
) -> None:
    status = 403 if code == "forbidden" else 200
    page = operator.post("agents_modelendpoint_add", status=status, **(FIELDS | values))
    assert f"<code>{code}</code>" in page if code else 'role="alert"' in page
    assert not ModelEndpoint.objects.exists()


def test_the_form_marks_and_clears_the_fields_of_other_providers(
    operator: admin_client.AdminClient,
) -> None:
    page = operator.get("agents_modelendpoint_add")
    region = re.search(r'<input[^>]*name="region"[^>]*>', page)
    assert region
    assert 'data-shows="kind=vertex|bedrock"' in region.group()
    assert '<span data-shows="kind=azure">For Azure, the name of the deployment.</span>' in page
    hidden = {"region": "not a region", "access_key_id": "AKIA", "api_version": "2024-10-21"}
    operator.post("agents_modelendpoint_add", **(FIELDS | hidden))
    endpoint = ModelEndpoint.objects.get()
    assert (endpoint.region, endpoint.access_key_id, endpoint.api_version) == ("", "", "")


def test_a_refused_update_changes_nothing(operator: admin_client.AdminClient) -> None:
    operator.post("agents_modelendpoint_add", **FIELDS)
    endpoint = ModelEndpoint.objects.get()
    fields = FIELDS | {"base_url": "http://127.0.0.1/v1"}
    assert "private_address" in operator.post("agents_modelendpoint_change", endpoint.pk, **fields)
    endpoint.refresh_from_db()
    assert endpoint.base_url == "https://api.example.com/v1"


def test_an_endpoint_in_use_cant_be_deleted(
    acme: Organization, operator: admin_client.AdminClient
) -> None:
    endpoint = factories.create_agent(acme).model_endpoint
    page = operator.post("agents_modelendpoint_delete", endpoint.pk, post="yes")
    assert ModelEndpoint.objects.exists()
    assert "Helper" in page


def test_an_unused_endpoint_is_deleted(operator: admin_client.AdminClient) -> None:
    operator.post("agents_modelendpoint_add", **FIELDS)
    operator.post("agents_modelendpoint_delete", ModelEndpoint.objects.get().pk, post="yes")
    assert not ModelEndpoint.objects.exists()


def test_caching_thinking_and_pdf_settings_are_saved(operator: admin_client.AdminClient) -> None:
    assert 'name="prompt_caching"' in operator.get("agents_modelendpoint_add")
    values = {"pdf_input": "on"}
    operator.post("agents_modelendpoint_add", **FIELDS, **values, thinking_summaries="on")
    endpoint = ModelEndpoint.objects.get()
    flags = (endpoint.pdf_input, endpoint.thinking_summaries, endpoint.prompt_caching)
    assert flags == (True, True, False)


def test_prices_are_typed_and_shown_in_dollars(operator: admin_client.AdminClient) -> None:
    prices = {"input_price": "3", "output_price": "12.50", "cache_read_price": "0.3"}
    operator.post("agents_modelendpoint_add", **FIELDS, **prices)
    endpoint = ModelEndpoint.objects.get()
    assert (endpoint.input_price, endpoint.output_price) == (3_000_000, 12_500_000)
    assert (endpoint.cache_read_price, endpoint.cache_write_price) == (300_000, None)
    page = operator.get("agents_modelendpoint_change", endpoint.pk)
    assert 'value="12.5"' in page
    assert 'value="0.3"' in page


@pytest.mark.parametrize("price", ["-1", "0.0000001", "dollars"])
def test_an_invalid_price_is_refused(operator: admin_client.AdminClient, price: str) -> None:
    operator.post("agents_modelendpoint_add", **FIELDS, input_price=price)
    assert not ModelEndpoint.objects.exists()
