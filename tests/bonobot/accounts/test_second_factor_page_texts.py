"""The words of the pages of second factors, in English and German: none of them is allauth's.

Each page is opened after the steps of a person, so that its messages and errors are on it, too.
"""

import re
from html import unescape
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.urls import urlpatterns
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import User
from bonobot.accounts.views.login import PAGE_TITLES
from tests.bonobot.accounts.software_passkey import SecurityKey
from tests.bonobot.accounts.test_second_factor import PASSWORD, build_code, read_secret
from tests.bonobot.accounts.test_second_factor_page_attacks import list_url_names
from tests.bonobot.accounts.test_second_factor_passkey_attacks import read_options

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("over_tls")]

WITHOUT_PAGE = {"mfa_download_recovery_codes"}  # a text file
# Of names: of the product, and of the person.
CAPITALIZED = {"Bonobot", "JavaScript", "QR"}
FORMAL = re.compile(r"\b(Sie|Ihnen|Ihr|Ihre[mnrs]?)\b")
FOREIGN = re.compile(
    r"two-factor|zwei-faktor|security key(?!\.)|deactivate|sign out|master key", re.I
)


# Messages, errors and counts that the steps show, in English and German.
EXPECTED: list[tuple[str, str]] = [
    ("The password is incorrect.", "Das Passwort ist falsch."),
    ("Set up an authenticator app or a passkey first.", "Richte zuerst eine Authenticator-App"),
    ("Authenticator app set up.", "Authenticator-App eingerichtet."),
    ("This code is incorrect, or was used before.", "Dieser Code ist falsch"),
    ("Passkey added.", "Passkey hinzugefügt."),
    ("This passkey wasn't accepted.", "Dieser Passkey wurde nicht akzeptiert."),
    ("Recovery codes created.", "Wiederherstellungscodes erstellt."),
    ("10 of 10 codes are unused", "10 von 10 Codes sind unbenutzt"),
    ("Too many attempts.", "Zu viele Versuche."),
    ("Passkey removed.", "Passkey entfernt."),
    ("Authenticator app removed.", "Authenticator-App entfernt."),
    ("Added just now, never used", "Hinzugefügt gerade eben, nie verwendet"),
    ("1 passkey", "1 Passkey"),
]


class Visit:
    """A browser of Anna's that keeps the pages that it was shown, by their URL names."""

    def __init__(self, language: str) -> None:
        self.client = Client(headers={"Accept-Language": language})
        self.pages: list[tuple[str, str]] = []

    def sign_in(self) -> None:
        data = {"username": "anna", "password": PASSWORD}
        self.client.post(reverse("admin:login"), data, secure=True)

    def open(self, url_name: str, *arguments: Any) -> str:
        path = reverse(url_name, args=arguments)
        return self._keep(self.client.get(path, secure=True, follow=True))

    def post(self, url_name: str, *arguments: Any, **data: str) -> str:
        path = reverse(url_name, args=arguments)
        return self._keep(self.client.post(path, data, secure=True, follow=True))

    def _keep(self, response: HttpResponse) -> str:
        assert response.status_code == 200, response
        shown: Any = response  # the test client adds what it resolved and rendered
        origins = [str(template.origin) for template in shown.templates]
        assert not [path for path in origins if "/allauth/templates/" in path]
        self.pages.append((shown.resolver_match.url_name, response.content.decode()))
        return self.pages[-1][1]


def visit_pages(language: str) -> list[tuple[str, str]]:
    """Set up, use, and remove each factor; return the pages."""
    visit, key = Visit(language), SecurityKey()
    visit.sign_in()
    visit.open("mfa_index")
    visit.open("mfa_activate_totp")  # asks for the password
    visit.post("account_reauthenticate", password="wrong")
    visit.post("account_reauthenticate", password=PASSWORD)
    visit.post("mfa_generate_recovery_codes")  # without a factor
    secret = read_secret(visit.open("mfa_activate_totp"))
    visit.post("mfa_activate_totp", code="000000")
    visit.post("mfa_activate_totp", code=build_code(secret))
    visit.open("mfa_add_webauthn")
    visit.post(
        "mfa_add_webauthn", credential=SecurityKey().answer({"publicKey": {"challenge": ""}})
    )
    options = read_options(visit.client, "mfa_add_webauthn")
    visit.post("mfa_add_webauthn", name="", credential=key.register(options))
    visit.open("mfa_add_webauthn")  # suggests the second name
    passkey = Authenticator.objects.get(type="webauthn")
    for name in ("mfa_index", "mfa_list_webauthn", "mfa_generate_recovery_codes"):
        visit.open(name)
    visit.open("mfa_edit_webauthn", passkey.pk)
    visit.post("mfa_edit_webauthn", passkey.pk, name="")
    visit.open("mfa_remove_webauthn", passkey.pk)
    visit.post("mfa_generate_recovery_codes")
    for name in ("account_reauthenticate", "mfa_reauthenticate", "mfa_reauthenticate_webauthn"):
        visit.open(name)
    visit.post("mfa_reauthenticate", code="000000")
    visit.post("mfa_reauthenticate_webauthn", credential=SecurityKey().answer(options))
    visit.open("mfa_deactivate_totp")
    visit.pages += visit_sign_in(language)
    visit.post("mfa_remove_webauthn", passkey.pk)
    visit.post("mfa_deactivate_totp")
    return visit.pages


def visit_sign_in(language: str) -> list[tuple[str, str]]:
    """Return the pages of a sign-in that stops at the second factor."""
    visit = Visit(language)
    visit.sign_in()
    visit.open("mfa_authenticate")
    options = read_options(visit.client, "mfa_authenticate")
    visit.post("mfa_authenticate", credential=SecurityKey().answer(options))
    for _ in range(12):
        visit.post("mfa_authenticate", code="000000")
    return visit.pages


def read_words(page: str) -> str:
    """Return the visible text of a page, and its labels, without scripts."""
    main = page[page.index("<main") : page.index("</main>")]
    main = re.sub(r"<(script|textarea).*?</\1>", " ", main, flags=re.DOTALL)
    attributes = " ".join(re.findall(r'(?:alt|placeholder|title|aria-label)="([^"]*)"', main))
    return unescape(
        " ".join(
            (
                re.sub(r"</?time[^>]*>|(<[^>]*>)", lambda tag: " " if tag[1] else "", main)
                + " "
                + attributes
            ).split()
        )
    )


def find_title_case(page: str) -> list[str]:
    """Return the headings, labels and buttons in which a later word has a capital."""
    elements = re.findall(r"<(h1|h2|label|button|a)\b[^>]*>(.*?)</\1>", page, re.DOTALL)
    texts = [
        unescape(" ".join(re.sub(r"<span[^>]*aria-hidden.*?</span>|<[^>]*>", " ", text).split()))
        for _, text in elements
    ]
    return [
        text
        for text in texts
        if any(word[0].isupper() and word not in CAPITALIZED for word in text.split()[1:])
    ]


def check_page(name: str, page: str, language: str) -> list[str]:
    """Return what is wrong with the words of a page."""
    words = read_words(page)
    title = re.search(r"<title>(.*?)</title>", page, re.DOTALL)
    assert title
    faults = [match[0] for match in (FORMAL.search(words), FOREIGN.search(words)) if match]
    if " | " in title[1] or " · Bonobot" not in title[1]:
        faults.append(title[1].strip())
    if language == "en":
        faults += find_title_case(page[page.index("<main") : page.index("</main>")])
    return [f"{name}: {fault}" for fault in faults]


@pytest.mark.django_db(transaction=True)  # allauth adds messages after the commit
@pytest.mark.parametrize("language", ["en", "de"])
def test_the_pages_of_second_factors_show_our_words_only(anna: User, language: str) -> None:
    pages = visit_pages(language)
    assert {name for name, _ in pages} >= set(PAGE_TITLES)
    faults = [
        fault
        for name, page in pages
        if name in PAGE_TITLES
        for fault in check_page(name, page, language)
    ]
    assert not faults, "\n".join(faults)
    words = " ".join(read_words(page) for _, page in pages)
    missing = [texts for texts in EXPECTED if texts[language == "de"] not in words]
    assert not missing


def test_each_page_of_second_factors_has_a_title() -> None:
    names = set(list_url_names(urlpatterns)) - WITHOUT_PAGE
    assert set(PAGE_TITLES) == names | {"account_reauthenticate"}


def test_too_many_confirmations_get_a_page(anna: User) -> None:
    visit = Visit("de")
    visit.sign_in()
    path = reverse("account_reauthenticate")
    responses = [visit.client.post(path, {"password": "wrong"}, secure=True) for _ in range(12)]
    assert responses[-1].status_code == 429
    assert "Zu viele Versuche" in responses[-1].content.decode()
