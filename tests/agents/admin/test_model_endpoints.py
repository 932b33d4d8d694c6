"""Model endpoints: the key goes in and never comes out; addresses are checked like a server's."""

from typing import Any

import pytest

from agents.models import ModelEndpoint
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.text.masking import MASK
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
OPENAI: dict[str, Any] = {
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
def seat(acme: Organization) -> admin_client.Desk:
    return admin_client.sit(acme, Role.OPERATOR)


def test_an_endpoint_is_created_with_an_encrypted_key(seat: admin_client.Desk) -> None:
    seat.post("agents_modelendpoint_add", **OPENAI)
    endpoint = ModelEndpoint.objects.get()
    assert endpoint.api_key.open() == "geheim"
    for page in (
        seat.get("agents_modelendpoint_changelist"),
        seat.get("agents_modelendpoint_change", endpoint.pk),
    ):
        assert "geheim" not in page


def test_the_mask_keeps_the_key(seat: admin_client.Desk) -> None:
    seat.post("agents_modelendpoint_add", **OPENAI)
    endpoint = ModelEndpoint.objects.get()
    assert MASK in seat.get("agents_modelendpoint_change", endpoint.pk)
    fields = OPENAI | {"name": "Bigger", "key": MASK}
    seat.post("agents_modelendpoint_change", endpoint.pk, **fields)
    endpoint.refresh_from_db()
    assert (endpoint.name, endpoint.api_key.open()) == ("Bigger", "geheim")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"base_url": "http://127.0.0.1:11434/v1"}, "private_address"),
        ({"model": " "}, "invalid"),
        ({"allow_private": "on"}, "forbidden"),
        ({"base_url": ""}, "bad_url"),
    ],
)
def test_invalid_values_are_reported_and_nothing_is_written(
    seat: admin_client.Desk, said: dict[str, str], code: str
) -> None:
    status = 403 if code == "forbidden" else 200
    page = seat.post("agents_modelendpoint_add", status=status, **(OPENAI | said))
    assert f"({code})" in page
    assert not ModelEndpoint.objects.exists()


def test_a_refused_update_changes_nothing(seat: admin_client.Desk) -> None:
    seat.post("agents_modelendpoint_add", **OPENAI)
    endpoint = ModelEndpoint.objects.get()
    fields = OPENAI | {"base_url": "http://127.0.0.1/v1"}
    assert "private_address" in seat.post("agents_modelendpoint_change", endpoint.pk, **fields)
    endpoint.refresh_from_db()
    assert endpoint.base_url == "https://api.example.com/v1"


def test_an_endpoint_in_use_cant_be_deleted(acme: Organization, seat: admin_client.Desk) -> None:
    endpoint = factories.create_agent(acme).model_endpoint
    page = seat.post("agents_modelendpoint_delete", endpoint.pk, post="yes")
    assert ModelEndpoint.objects.exists()
    assert "Helper" in page


def test_an_unused_endpoint_is_deleted(seat: admin_client.Desk) -> None:
    seat.post("agents_modelendpoint_add", **OPENAI)
    seat.post("agents_modelendpoint_delete", ModelEndpoint.objects.get().pk, post="yes")
    assert not ModelEndpoint.objects.exists()
