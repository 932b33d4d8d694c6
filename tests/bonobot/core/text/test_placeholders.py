"""Placeholders are filled once, only with the given values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.text.placeholders import (
    fill_placeholders,
    find_unreadable_placeholder,
    list_placeholders,
)


@pytest.mark.parametrize(
    ("text", "names", "default"),
    [
        ("${A}", ["A"], None),
        ("x-${A_1}-${B}", ["A_1", "B"], None),
        ("${A:-}", ["A"], ""),
        ("${A:-http://x/y}", ["A"], "http://x/y"),
        ("${env:HOME_DIR}", ["HOME_DIR"], None),
        ("${input:api-key}", ["api-key"], None),
        ("$A $(A) {A} %A%", [], None),
    ],
)
def test_each_form_of_a_reference_is_found(
    text: str, names: list[str], default: str | None
) -> None:
    placeholders = list(list_placeholders(text))
    assert [reference.name for reference in placeholders] == names
    assert all(reference.default == default for reference in placeholders)


def test_values_are_filled_in_and_missing_ones_reported() -> None:
    filled, missing = fill_placeholders("${A}/${B:-b}/${C}", {"A": "1"})
    assert filled == "1/b/${C}"
    assert [reference.name for reference in missing] == ["C"]
    assert fill_placeholders("${B:-b}", {"B": "2"}) == ("2", ())
    assert fill_placeholders("${B:-b}", {"B": ""}) == ("b", ())


def test_a_value_that_looks_like_a_reference_isnt_expanded() -> None:
    assert fill_placeholders("${A}", {"A": "${B}", "B": "no"}) == ("${B}", ())


@pytest.mark.parametrize("name", ["BONOBOT_KEYS", "bonobot_keys", "DATABASE_URL", "REDIS_URL"])
def test_variables_of_the_product_cant_be_used(name: str) -> None:
    filled, (missing,) = fill_placeholders(f"${{{name}:-x}}", {name: "secret"})
    assert filled == f"${{{name}:-x}}"
    assert missing.is_forbidden


@pytest.mark.parametrize("text", ["${command:pick}", "${}", "${A B}", "${unclosed"])
def test_an_invalid_reference_is_reported(text: str) -> None:
    assert find_unreadable_placeholder(f"x {text}") == text


@given(st.text(st.sampled_from("${}:-AB ")), st.dictionaries(st.sampled_from("AB"), st.text()))
def test_text_outside_references_is_unchanged(text: str, values: dict[str, str]) -> None:
    if not list(list_placeholders(text)):
        assert fill_placeholders(text, values) == (text, ())
