"""Numbers in translated texts of templates."""

import pytest
from django.template import Context, Template
from django.utils import translation


def render(text: str, language: str, **values: object) -> str:
    with translation.override(language):
        return Template("{% load i18n %}" + text).render(Context(values))


CALLS = (
    "{% blocktranslate count n=calls %}{{ n }} call{% plural %}{{ n }} calls{% endblocktranslate %}"
)


@pytest.mark.parametrize(
    ("language", "calls", "text"),
    [
        ("en", 1, "1 call"),
        ("en", 1234, "1,234 calls"),
        ("de", 1, "1 Aufruf"),
        ("de", 1234, "1.234 Aufrufe"),
    ],
)
def test_the_number_of_a_plural_has_the_readers_separators(
    language: str, calls: int, text: str
) -> None:
    assert render(CALLS, language, calls=calls) == text


def test_the_plural_form_is_the_numbers_when_its_variable_has_the_same_name() -> None:
    text = CALLS.replace("n=calls", "n=n")
    assert render(text, "en", n=1) == "1 call"
    assert render(text, "de", n=2000) == "2.000 Aufrufe"


def test_numbers_are_formatted_when_a_text_has_no_plural() -> None:
    text = "{% blocktranslate with n=rows %}{{ n }} of {{ total }}{% endblocktranslate %}"
    assert render(text, "en", rows=1000, total=25000) == "1,000 of 25,000"


def test_texts_stay_escaped_and_unchanged_when_they_look_like_numbers() -> None:
    text = "{% blocktranslate %}{{ name }}, {{ safe }}{% endblocktranslate %}"
    assert render(text, "en", name="<1234>", safe="1234") == "&lt;1234&gt;, 1234"
