"""Template tags of the admin."""

from datetime import timedelta

import pytest
from django.template import Context, Template
from django.utils import timezone, translation

from bonobot.accounts.templatetags.display import (
    age,
    ago,
    amount,
    cost,
    counted,
    dollars,
    linked_number,
    maybe_json,
    milliseconds,
    monogram,
    outcome,
    percent,
    plain_dollars,
    render_badge,
    tokens,
    typed_amount,
)
from bonobot.core.i18n.localization import format_number


def test_what_wasnt_counted_is_a_dash_and_a_cost_of_zero_is_a_number() -> None:
    assert (tokens(0), tokens(1_200)) == ("–", "1,200")
    assert (dollars(None), dollars(0)) == ("–", "$0.00")


def test_a_monogram_has_the_first_letter_and_always_the_same_hue() -> None:
    first, again, other = monogram("(gitHub)"), monogram("(gitHub)"), monogram("Zendesk", "agent")
    assert first == again
    assert (first["letter"], first["kind"]) == ("G", "server")
    assert (other["letter"], other["kind"]) == ("Z", "agent")
    assert first["hue"] != other["hue"]
    assert monogram("…")["letter"] == "?"


def test_parts_of_a_page_contain_what_is_between_their_tags() -> None:
    source = """{% load display %}
    {% panel name aside="2 of 3" %}{% table "bb-stacks" %}<tr></tr>{% endtable %}{% endpanel %}
    {% when_empty "dns" id="none" hidden=True %}<p>No servers</p>{% endwhen_empty %}"""
    page = Template(source).render(Context({"name": "<Facts>"}))
    assert (
        '<section class="bb-panel"><header><h3>&lt;Facts&gt;</h3>'
        '<span class="bb-quiet bb-small">2 of 3</span></header>'
        '<div class="bb-scroll" tabindex="0"><table class="bb-table bb-stacks"><tr></tr></table>'
    ) in page
    assert (
        '<div class="bb-empty" id="none" hidden><span class="material-symbols-outlined"'
        ' aria-hidden="true">dns</span><p>No servers</p></div>'
    ) in page


def test_an_outcome_has_an_icon_and_a_word() -> None:
    assert outcome("ok") == (
        '<span class="bb-state" data-tone="good">'
        '<span class="material-symbols-outlined" aria-hidden="true">check_circle</span>'
        '<span class="bb-state-word">Succeeded</span></span>'
    )
    assert "Denied" in outcome("refused", "denied_by_policy")
    assert 'title="denied_by_policy"' in outcome("refused", "denied_by_policy")
    assert "Pending approval" in outcome("pending")
    assert "Unknown" in outcome("something new")


@pytest.mark.parametrize(
    ("state", "tone_name", "icon_name", "word"),
    [
        ("pending", "warn", "fact_check", "pending review"),
        ("deny", "trust", "block", "deny"),
        ("open", "busy", "progress_activity", "running"),
        ("off", "plain", "do_not_disturb_on", "off"),
    ],
)
def test_a_state_is_an_icon_and_its_word(
    state: str, tone_name: str, icon_name: str, word: str
) -> None:
    html = render_badge(state)
    assert f'data-tone="{tone_name}"' in html
    assert f">{icon_name}</span>" in html
    assert f'<span class="bb-state-word">{word}</span>' in html
    assert "a word of its own" in render_badge(state, "a word of its own")


def test_a_result_of_too_many_levels_is_shown_as_text() -> None:
    assert str(maybe_json("[" * 2_000)) == "[" * 2_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "now"), (240, "4 min"), (3 * 3600 + 5, "3 h"), (2 * 86_400 + 5, "2 d")],
)
def test_an_age_fits_a_narrow_column(seconds: int, text: str) -> None:
    assert age(timezone.now() - timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (timedelta(hours=24), "in 1 day"),
        (timedelta(hours=23), "in 23 hours"),
        (timedelta(minutes=90), "in 1 hour"),
        (timedelta(minutes=15), "in 15 minutes"),
    ],
)
def test_the_time_left_is_rounded(left: timedelta, text: str) -> None:
    shown = ago(timezone.now() + left - timedelta(seconds=5))
    assert f">{text}<" in shown.replace("\N{NO-BREAK SPACE}", " ")


def test_numbers_have_the_separators_of_the_language() -> None:
    def format_all() -> list[str]:
        return [
            *(format_number(5372), counted(999), amount(5372, "calls")),
            *(dollars(0), dollars(1_234_500_000), dollars(1_500), amount(500_000, "microusd")),
            *(milliseconds(4_321), milliseconds(90_000), milliseconds(12)),
            *(percent(99.5), percent(12.34)),
        ]

    english = ["5,372", "999", "5,372", "$0.00", "$1,234.50", "$0.0015", "$0.50"]
    assert format_all() == [*english, "4.3 s", "1.5 min", "12 ms", "99.50%", "12.3%"]
    with translation.override("de"):
        german = ["5.372", "999", "5.372", "0,00\u00a0$", "1.234,50\u00a0$", "0,0015\u00a0$"]
        assert format_all() == [
            *(*german, "0,50\u00a0$"),
            *("4,3 s", "1,5 min", "12 ms", "99,50\u00a0%", "12,3\u00a0%"),
        ]
        # Values of inputs stay as they are typed.
        assert (plain_dollars(1_500_000), typed_amount(5372, "calls")) == ("1.5", "5372")


def test_a_cost_is_unknown_without_counted_tokens() -> None:
    assert cost(0, 0) == "–"
    assert cost(0, 12) == "$0.00"
    assert cost(20_000, 0) == "$0.0200"  # of calls


@pytest.mark.parametrize(
    ("number", "unit", "html"),
    [
        (1234, "", '<a href="/x?a=1&amp;b=2">1,234</a>'),
        (1500, "ms", '<a href="/x?a=1&amp;b=2">1.5 s</a>'),
        (0, "", "–"),
        (None, "ms", "–"),
    ],
)
def test_numbers_link_to_their_rows_unless_there_are_none(
    number: int | None, unit: str, html: str
) -> None:
    assert linked_number(number, "/x?a=1&b=2", unit) == html
