"""Rendering skills with arguments, and parsing argument declarations."""

import pytest

from agents.skills import (
    SkillTemplate,
    TemplateArgument,
    check_text,
    format_line,
    parse_line,
    parse_lines,
    read_arguments,
    render_skill,
    to_prompt,
)
from bonobot.core.problems import InvalidInput

NOTES = SkillTemplate(
    "notes",
    "Notes for ${version}, ${tone}: ${version}.",
    arguments=(
        TemplateArgument("version", "Which release", required=True),
        TemplateArgument("tone", default="dry", choices=("dry", "warm")),
    ),
)


def test_arguments_are_inserted_once_as_text():
    assert render_skill(NOTES, {"version": "${tone}"}) == "Notes for ${tone}, dry: ${tone}."
    assert render_skill(NOTES, {"version": "1", "tone": "warm"}) == "Notes for 1, warm: 1."


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "arguments.version"),
        ({"version": ""}, "arguments.version"),
        ({"version": "1", "tone": "loud"}, "arguments.tone"),
        ({"version": "1", "other": "x"}, "arguments.other"),
        ({"version": "x" * 16_001}, "arguments.version"),
    ],
)
def test_an_invalid_value_is_reported_with_its_argument(values, field):
    with pytest.raises(InvalidInput) as caught:
        render_skill(NOTES, values)
    assert caught.value.field == field
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("declarations", "field"),
    [
        ([{"name": "Big"}], "arguments[0].name"),
        ([{"name": "a"}, {"name": "a"}], "arguments[1].name"),
        ([{"name": "a", "kind": "text"}], "arguments[0].kind"),
        ([{"name": "a", "default": "x", "choices": ["y"]}], "arguments[0].default"),
        ([{"name": "a", "choices": [1]}], "arguments[0].choices"),
        ([{"name": "a", "default": 1}], "arguments[0].default"),
        ([{"name": f"a{n}"} for n in range(21)], "arguments"),
    ],
)
def test_an_invalid_declaration_is_reported(declarations, field):
    with pytest.raises(InvalidInput) as caught:
        read_arguments(declarations)
    assert caught.value.field == field


def test_an_undeclared_placeholder_is_refused():
    with pytest.raises(InvalidInput) as caught:
        check_text("Do ${it} and ${that}.", [TemplateArgument("it")])
    assert (caught.value.code, caught.value.field) == ("undeclared_argument", "text")
    assert "${that}" in str(caught.value)


def test_a_skill_is_a_prompt():
    prompt = to_prompt(NOTES)
    assert [argument["required"] for argument in prompt["arguments"]] == [True, False]


@pytest.mark.parametrize(
    "argument",
    [
        TemplateArgument("a"),
        TemplateArgument("a", "What it is: a thing", required=True),
        TemplateArgument("a", default='quoted: "yes" [x]', choices=("b", 'c "d"')),
        TemplateArgument("a", "described", True, "plain words", ("plain words", "others")),
    ],
)
def test_a_formatted_line_is_parsed_back_unchanged(argument):
    assert parse_line(format_line(argument)) == argument


def test_an_empty_line_is_refused():
    assert [argument.name for argument in parse_lines("a\n\n  b! : x\n")] == ["a", "b"]
    for line in ("= x", 'a ["b"', "a [b]", "a b"):
        with pytest.raises(InvalidInput) as caught:
            parse_line(line)
        assert caught.value.field == "arguments"
