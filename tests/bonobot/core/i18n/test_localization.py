"""Our English messages in the language of the reader, including stored ones."""

import time

from django.utils import translation

from bonobot.core.i18n.localization import (
    format_percent,
    localize_names,
    localize_problem,
    localize_text,
)
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.ledger.budgets import convert_amount

ENGLISH_TEXT = "`web` can't be reached: the host didn't respond in time. Check the server's URL."
GERMAN_TEXT = (
    "`web` ist nicht erreichbar: der Host hat nicht rechtzeitig geantwortet. Prüfe die URL "
    "des Servers."
)


def test_a_problem_is_shown_in_the_language_of_its_reader() -> None:
    problem = NotFound(
        format_message("The preset {slug!r} doesn't exist.", slug="x"),
        remedy="Use one of the choices.",
    )
    with translation.override("de"):
        assert localize_text(problem) == "Die Vorlage 'x' existiert nicht."
        assert (
            localize_problem(problem)
            == "Die Vorlage 'x' existiert nicht. Verwende einen der Auswahlwerte."
        )
        assert str(problem) == problem.as_dict()["detail"] == "The preset 'x' doesn't exist."
    with translation.override("en"):
        assert localize_problem(problem) == "The preset 'x' doesn't exist. Use one of the choices."


def test_a_stored_english_text_is_translated_by_its_template() -> None:
    with translation.override("de"):
        assert localize_text(ENGLISH_TEXT) == GERMAN_TEXT
    with translation.override("en"):
        assert localize_text(ENGLISH_TEXT) == ENGLISH_TEXT


def test_a_stored_refusal_of_an_installation_is_translated() -> None:
    text = (
        "`npx` couldn't be installed: a connection was denied. `registry.example` resolves to "
        "`::ffff:10.0.0.1`, a reserved address (contains 10.0.0.1: private network). Connections "
        "to it aren't allowed. The installer reported: npm error 403. Forbidden."
    )
    with translation.override("de"):
        assert localize_text(text) == (
            "`npx` konnte nicht installiert werden: eine Verbindung wurde verweigert. "
            "`registry.example` hat die Adresse `::ffff:10.0.0.1`, die reserviert ist (enthält "
            "10.0.0.1: privates Netzwerk). Verbindungen dorthin sind nicht erlaubt. Der Installer "
            "meldete: npm error 403. Forbidden."
        )


def test_nested_phrases_are_translated_and_names_arent() -> None:
    why = format_message("the host didn't respond in time")
    message = format_message("`{endpoint}` can't be reached: {why}.", endpoint="Not found", why=why)
    with translation.override("de"):
        assert (
            localize_text(message)
            == "`Not found` ist nicht erreichbar: der Host hat nicht rechtzeitig geantwortet."
        )
        assert localize_text(str.__str__(message)) == localize_text(message)


def test_texts_of_servers_arent_translated() -> None:
    text = "Überraschung! Nothing of ours. (Really, `nothing`: {0} {x} %s.)"
    with translation.override("de"):
        assert localize_text(text) == text
        assert localize_text("") == localize_text(None) == ""


def test_a_text_that_resembles_templates_is_matched_quickly() -> None:
    hostile = "`" + "can't be reached: " * 150 + ". ; ? " * 100
    with translation.override("de"):
        started = time.process_time()
        localize_text(hostile)
        localize_text("x" * 1_000_000)
        assert time.process_time() - started < 2


def test_roles_and_flow_labels_are_translated_in_sentences() -> None:
    role = format_message(
        "Your role is {role}. An owner can give you a role that has this permission: {who_may}.",
        role="auditor",
        who_may="owner, operator",
    )
    labels = format_message(
        "Seen outside a session: {seen}. Labels of the tool: {adds}.",
        seen="private data, untrusted content",
        adds="nothing",
    )
    with translation.override("de"):
        for text in (localize_text(role), localize_text(str.__str__(role))):
            assert "Auditor" in text
            assert "Eigentümer, Betreiber" in text
        for text in (localize_text(labels), localize_text(str.__str__(labels))):
            assert "private Daten, nicht vertrauenswürdige Inhalte" in text
            assert "nichts" in text
        assert localize_names("owner, someone") == "Eigentümer, someone"
    assert localize_names("owner, operator") == "owner, operator"


def test_numbers_of_messages_have_the_separators_of_the_reader() -> None:
    message = format_message("The answer was cut off at {max_tokens:,} tokens.", max_tokens=4096)
    for text in (message, str.__str__(message)):
        with translation.override("de"):
            assert "4.096" in localize_text(text)
            assert format_percent(12.5) == "12,5\u00a0%"
        with translation.override("en"):
            assert localize_text(text) == "The answer was cut off at 4,096 tokens."
            assert format_percent(1234.5) == "1,234.5%"


def test_the_amounts_of_a_message_have_the_readers_separators_when_it_was_stored() -> None:
    message = format_message(
        "The budget of {whose} is almost exhausted: {spent:,} of {limit:,} {unit} "
        "{period}. Raise the budget to avoid denied calls.",
        whose=format_message("the organization"),
        spent=convert_amount("microusd", 1_234_500_000),
        limit=convert_amount("tokens", 20_000),
        unit=format_message("dollars"),
        period=format_message("per day"),
    )
    assert "1,234.50 of 20,000 dollars" in message
    with translation.override("de"):
        for text in (message, str.__str__(message)):
            assert "1.234,50 von 20.000" in localize_text(text)
