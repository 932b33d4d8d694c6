"""Stored secrets of an organization are masked for it, and only for it."""

import base64
import json
from urllib.parse import quote
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.accounts.models import Organization
from bonobot.core.crypto.organization_secrets import (
    load_masker,
    mask_organization_secrets,
)
from bonobot.core.text.masking import (
    MASK,
    get_organization_secrets,
    is_ordinary_value,
    register_organization_secret,
)
from bonobot.notifications.models import NotificationChannel
from mcp_servers.models import Secret, Server
from tests import factories

CANARY = "cnry-7Qx9/+Zk"


@pytest.fixture
def acme(db: None) -> Organization:
    return factories.create_organization()


def store_secret(organization: Organization, value: str, placement: str = "env") -> Secret:
    server = Server.objects.create(
        organization=organization,
        scope_id=organization.pk,
        name=str(uuid4()),
        slug=str(uuid4())[:20],
        transport_type="stdio",
    )
    secret: Secret = Secret.objects.create(
        organization=organization, server=server, placement=placement, name="TOKEN", value=value
    )
    return secret


def test_all_encrypted_secrets_of_an_organization_are_masked(acme):
    store_secret(acme, CANARY)
    NotificationChannel.objects.create(
        organization=acme, name="c", kind="webhook", secret="hook-5tR8!w"
    )
    masker = load_masker(acme.pk)
    assert masker.mask_known(f"a {CANARY} b hook-5tR8!w") == f"a {MASK} b {MASK}"


def test_secrets_of_another_organization_arent_masked(acme):
    store_secret(acme, CANARY)
    load_masker(acme.pk)
    other_organization = factories.create_organization("other")
    assert CANARY in load_masker(other_organization.pk).mask_known(f"a {CANARY} b")


def test_a_secret_is_masked_as_soon_as_it_is_written(acme):
    load_masker(acme.pk, 7)
    store_secret(acme, CANARY)
    masker = get_organization_secrets(str(acme.pk)).find_current_masker(7)
    assert masker is not None
    assert masker.mask_known(CANARY) == MASK


def test_secrets_are_reloaded_only_for_a_new_generation(acme, django_assert_num_queries):
    row = store_secret(acme, CANARY)
    get_organization_secrets(str(acme.pk)).reading = None
    load_masker(acme.pk, 1)
    assert get_organization_secrets(str(acme.pk)).find_current_masker(1) is not None
    assert get_organization_secrets(str(acme.pk)).find_current_masker(2) is None
    row.delete()
    # A deleted secret may still be in use elsewhere.
    assert load_masker(acme.pk, 2).mask_known(CANARY) == MASK


def test_a_credential_is_masked_without_its_scheme(acme):
    store_secret(acme, f"Bearer {CANARY}", "header")
    assert mask_organization_secrets(f"it is {CANARY}", acme.pk) == f"it is {MASK}"


@pytest.mark.parametrize(
    "value",
    ["production", "5432", "application/json", "/srv/data-1", "./x", "https://api.example.com/v"],
)
def test_values_that_arent_secret_stay_readable(acme, value):
    assert is_ordinary_value(value)
    store_secret(acme, value)
    assert mask_organization_secrets(f"see {value}", acme.pk) == f"see {value}"


@pytest.mark.parametrize(
    "value",
    [
        "hunter2!",
        "https://u:p@example.com/",
        "https://hooks.example.com/T0/B1/xYz",
        CANARY,
        "aB3=/",
    ],
)
def test_values_that_may_be_secrets_are_masked(value):
    assert not is_ordinary_value(value)


@given(
    st.text(min_size=8, max_size=40).filter(lambda text: not is_ordinary_value(text)),
    st.sampled_from(("plain", "base64", "url", "json")),
    st.binary(max_size=5),
)
def test_every_encoding_of_a_known_secret_is_masked(secret, encoding, prefix):
    try:
        plain = secret.encode()
    except UnicodeEncodeError:
        return
    organization = uuid4()
    register_organization_secret(str(organization), secret)
    encoded = {
        "plain": secret,
        "base64": base64.b64encode(prefix + plain).decode(),
        "url": quote(secret, safe=""),
        "json": json.dumps(secret)[1:-1],
    }[encoding]
    masker = get_organization_secrets(str(organization)).get_masker()
    arguments = {"deep": [{"text": f"<{encoded}>"}]}
    assert MASK in masker.mask_known(arguments)["deep"][0]["text"]
