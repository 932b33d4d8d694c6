"""The admin in German: complete, up to date, and selected by the browser or the person.

`test_admin_pages.py` opens every page in German.
"""

import re

import pytest
from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from bonobot.accounts.roles import Role
from bonobot.core.i18n.catalogs import read_catalog
from tests import admin_client, factories
from tests.translation_catalog import GERMAN, find_messages

PLACEHOLDER = re.compile(r"%\(\w+\)[a-z]|%[sd%]|\$?\{[^}]*\}|</?[a-z][^>]*>")


def test_every_message_has_a_german_translation() -> None:
    catalog = read_catalog(GERMAN)
    missing = sorted(
        message.text for message in find_messages() if not all(catalog.get(message, ("",)))
    )
    assert not missing, f"run `make messages` and translate {missing[:20]}"


def test_no_german_translation_of_a_removed_message_is_left() -> None:
    assert set(read_catalog(GERMAN)) == find_messages(), "run `make messages`"


def test_translations_have_the_same_placeholders() -> None:
    for message, texts in read_catalog(GERMAN).items():
        for source, text in zip(
            (message.text, message.plural or message.text)[-len(texts) :], texts, strict=True
        ):
            assert sorted(PLACEHOLDER.findall(text)) == sorted(PLACEHOLDER.findall(source)), (
                message.text
            )


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        (
            forms.SlugField(),
            "two words",
            "Use only letters (a–z), digits, hyphens, and underscores.",
        ),
        (forms.JSONField(), '{"a": ', "This isn't valid JSON. Check the quotation marks, commas,"),
        (forms.IntegerField(min_value=0), "-1", "Enter 0 or more."),
        (forms.IntegerField(max_value=9), "10", "Enter 9 or less."),
        (forms.CharField(max_length=2), "abc", "Enter at most 2 characters. The text has 3."),
    ],
)
def test_errors_of_djangos_fields_say_what_to_enter(
    field: forms.Field, value: str, expected: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(expected)):
        field.clean(value)


@pytest.mark.django_db
def test_the_chosen_language_overrides_the_browsers() -> None:
    admin = admin_client.sign_in(factories.create_organization(), Role.OWNER)
    url = reverse("admin:index")
    assert (
        "Genehmigungen" in admin.client.get(url, headers={"accept-language": "de"}).content.decode()
    )
    admin.client.post(reverse("set_language"), {"language": "en", "next": url})
    assert settings.LANGUAGE_COOKIE_NAME in admin.client.cookies
    page = admin.client.get(url, headers={"accept-language": "de"}).content.decode()
    assert "Approvals" in page


@pytest.mark.django_db
def test_an_unsupported_language_gets_english() -> None:
    page = Client().get(reverse("admin:login"), headers={"accept-language": "fr"})
    assert b"Sign in" in page.content


@pytest.mark.django_db
def test_a_refusal_is_shown_in_german_and_stored_in_english() -> None:
    acme = factories.create_organization()
    client = admin_client.sign_in(acme, Role.OWNER).client
    data = {"accept-language": "de"}
    url, text = reverse("admin:mcp_servers_server_paste"), {"text": '{"x": '}
    page = client.post(url, text, headers=data, follow=True)
    assert "Der Text endet zu früh" in page.content.decode()
    problem = client.post("/api/presets", {}, content_type="application/json", headers=data).json()
    assert problem["code"] == "invalid"
    assert problem["remedy"].startswith("Korrigiere die Anfrage")
    missing = client.get("/api/agents/nobody", headers=data).json()
    english = client.get("/api/agents/nobody", headers={"accept-language": "en"}).json()
    assert missing["code"] == english["code"]
    assert missing["detail"] != english["detail"]
    server = admin_client.create_web_server(acme, "web")
    why = "`web` can't be reached: the host didn't respond in time."
    type(server).objects.filter(pk=server.pk).update(status="error", status_detail=why)
    url = reverse("admin:mcp_servers_server_change", args=[server.pk])
    assert "ist nicht erreichbar: der Host hat nicht rechtzeitig geantwortet." in (
        client.get(url, headers=data).content.decode()
    )
    assert "can&#x27;t be reached" in client.get(url).content.decode()
