"""Our English sentences in the language of whoever reads them, also those that were stored."""

import time

from django.utils import translation

from bonobot.core.i18n.localization import localize_problem, localize_text
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound

TWO = "`web` could not be reached: it did not answer in time. Check the URL of the server."
ZWEI = "`web` war nicht zu erreichen: er antwortete nicht rechtzeitig. Prüfe die URL des Servers."


def test_a_problem_is_told_in_the_language_of_its_reader() -> None:
    problem = NotFound(
        format_message("There is no preset {slug!r} here.", slug="x"), remedy="Choose one of them."
    )
    with translation.override("de"):
        assert localize_text(problem) == "Hier gibt es keine Vorlage 'x'."
        assert localize_problem(problem) == "Hier gibt es keine Vorlage 'x'. Wähle eines davon."
        assert str(problem) == problem.as_dict()["detail"] == "There is no preset 'x' here."
    with translation.override("en"):
        assert localize_problem(problem) == "There is no preset 'x' here. Choose one of them."


def test_what_was_stored_in_english_is_read_back_from_its_words() -> None:
    with translation.override("de"):
        assert localize_text(TWO) == ZWEI
    with translation.override("en"):
        assert localize_text(TWO) == TWO


def test_phrases_of_ours_in_a_sentence_are_translated_and_names_are_not() -> None:
    why = format_message("it did not answer in time")
    said = format_message(
        "`{endpoint}` could not be reached: {why}.", endpoint="Not found", why=why
    )
    with translation.override("de"):
        assert (
            localize_text(said)
            == "`Not found` war nicht zu erreichen: er antwortete nicht rechtzeitig."
        )
        assert localize_text(str.__str__(said)) == localize_text(said)


def test_what_a_server_said_stays_as_it_is() -> None:
    strange = "Überraschung! Nothing of ours. (Really, `nothing`: {0} {x} %s.)"
    with translation.override("de"):
        assert localize_text(strange) == strange
        assert localize_text("") == localize_text(None) == ""


def test_a_text_that_resembles_our_templates_takes_no_time() -> None:
    hostile = "`" + "could not be reached: " * 150 + ". ; ? " * 100
    with translation.override("de"):
        begun = time.process_time()
        localize_text(hostile)
        localize_text("x" * 1_000_000)
        assert time.process_time() - begun < 2
