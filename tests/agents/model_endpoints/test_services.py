"""Saving model endpoints: what each kind requires, keys, fallbacks."""

from dataclasses import replace
from typing import Any

import pytest

from agents.llm.provider_kinds import PROVIDER_KINDS
from agents.model_endpoints.services import (
    MAX_CHAIN_LENGTH,
    ModelEndpointSpec,
    build_endpoint,
    build_fallback_chain,
    delete_endpoint,
    save_endpoint,
)
from agents.models import ModelEndpoint
from bonobot.accounts.models import Organization
from bonobot.core.problems import Problem
from tests import factories

pytestmark = pytest.mark.django_db
AZURE = {"kind": "azure", "base_url": "https://acme.openai.azure.com"}
ACCOUNT = '{"project_id": "p", "client_email": "e@p.example", "private_key": "k"}'


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


def save(
    acme: Organization, name: str = "One", row: ModelEndpoint | None = None, **fields: Any
) -> ModelEndpoint:
    defaults = {"name": name, "kind": "anthropic", "model": "claude-opus-5", "api_key": "geheim"}
    return save_endpoint(
        factories.build_administrator(acme), ModelEndpointSpec(**(defaults | fields)), row
    )


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({}, "https://api.anthropic.com"),
        ({"kind": "google"}, "https://generativelanguage.googleapis.com"),
        ({"kind": "responses"}, "https://api.openai.com/v1"),
        (
            {"kind": "bedrock", "region": "eu-central-1", "access_key_id": "AKIA"},
            "https://bedrock-runtime.eu-central-1.amazonaws.com",
        ),
        ({"kind": "vertex", "api_key": ACCOUNT}, "https://aiplatform.googleapis.com"),
        (
            {"kind": "vertex", "api_key": ACCOUNT, "region": "europe-west4"},
            "https://europe-west4-aiplatform.googleapis.com",
        ),
        (
            {"kind": "azure", "base_url": "https://acme.openai.azure.com"},
            "https://acme.openai.azure.com",
        ),
    ],
)
def test_each_kind_has_its_default_url(
    acme: Organization, fields: dict[str, Any], url: str
) -> None:
    endpoint = build_endpoint(save(acme, **fields))
    assert endpoint.url == url
    assert endpoint.api_key == fields.get("api_key", "geheim")
    assert "geheim" not in repr(endpoint)


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"model": " "}, "model", "invalid"),
        ({"kind": "bedrock"}, "region", "invalid"),
        ({"kind": "bedrock", "region": "evil.example/"}, "region", "invalid"),
        ({"kind": "bedrock", "region": "eu-central-1.evil"}, "region", "invalid"),
        (
            {"kind": "bedrock", "region": "eu-west-1", "access_key_id": "A", "api_key": ""},
            "api_key",
            "invalid",
        ),
        ({"kind": "vertex"}, "api_key", "invalid"),
        ({"kind": "vertex", "api_key": "[1]"}, "api_key", "invalid"),
        ({"kind": "azure"}, "base_url", "bad_url"),
        (
            AZURE | {"api_version": "x&y"},
            "api_version",
            "invalid",
        ),
        ({"base_url": "http://10.0.0.1"}, "base_url", "private_address"),
        ({"thinking": "deep"}, "thinking", "invalid"),
        ({"retries": 11}, "retries", "invalid"),
        ({"timeout_s": 0}, "timeout_s", "invalid"),
        ({"timeout_s": 3_601}, "timeout_s", "invalid"),
        ({"max_tokens": 10_000_001}, "max_tokens", "invalid"),
        ({"cache_write_price": 2**53 + 1}, "cache_write_price", "invalid"),
    ],
)
def test_invalid_settings_are_refused_at_their_field(
    acme: Organization, fields: dict[str, Any], field: str, code: str
) -> None:
    with pytest.raises(Problem) as caught:
        save(acme, **fields)
    assert (caught.value.field, caught.value.code) == (field, code)
    assert caught.value.remedy
    assert not ModelEndpoint.objects.exists()


def test_a_missing_library_is_reported_with_its_extra(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    anthropic = replace(PROVIDER_KINDS["anthropic"], library="no_such_library")
    monkeypatch.setitem(PROVIDER_KINDS, "anthropic", anthropic)
    with pytest.raises(Problem) as caught:
        save(acme)
    assert (caught.value.field, caught.value.code) == ("kind", "provider_missing")
    assert "bonobot[anthropic]" in caught.value.remedy


def test_a_stored_key_is_kept_only_for_its_url(acme: Organization) -> None:
    row = save(acme)
    with pytest.raises(Problem) as caught:
        save(acme, row=row, base_url="https://evil.example", api_key="********")
    assert (caught.value.field, caught.value.code) == ("api_key", "credential_required")
    with pytest.raises(Problem):
        save(acme, row=row, kind="google", api_key="********")
    save(acme, row=row, model="claude-haiku-5", api_key="********")
    assert (
        save(acme, row=row, base_url="https://other.example", api_key="new").api_key.open() == "new"
    )


def test_fallbacks_cant_form_a_cycle(acme: Organization) -> None:
    rows = [save(acme, "E0")]
    for number in range(1, MAX_CHAIN_LENGTH):
        rows.append(save(acme, f"E{number}", fallback=rows[-1]))
    assert build_fallback_chain(rows[-1]) == rows[::-1]
    with pytest.raises(Problem) as caught:
        save(acme, "Last", fallback=rows[-1])
    assert caught.value.code == "fallback_too_long"
    extra = save(acme, "Extra")
    with pytest.raises(Problem) as caught:
        save(acme, "E0", row=rows[0], fallback=extra)
    assert caught.value.code == "fallback_too_long"
    with pytest.raises(Problem) as caught:
        save(acme, "E0", row=rows[0], fallback=rows[2])
    assert caught.value.code == "fallback_cycle"


def test_a_fallback_of_another_organization_isnt_found(acme: Organization) -> None:
    other_endpoint = save(factories.create_organization("other"), "Theirs")
    with pytest.raises(Problem) as caught:
        save(acme, fallback=other_endpoint)
    assert caught.value.field == "fallback"


def test_an_endpoint_used_as_a_fallback_cant_be_deleted(acme: Organization) -> None:
    fallback = save(acme, "Behind")
    save(acme, "Before", fallback=fallback)
    with pytest.raises(Problem) as caught:
        delete_endpoint(factories.build_administrator(acme), fallback)
    assert caught.value.code == "in_use"
