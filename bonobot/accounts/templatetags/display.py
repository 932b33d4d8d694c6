"""Template filters and tags: untrusted texts, states, times, numbers, and parts of pages."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from zlib import crc32

from django import template
from django.forms.utils import flatatt
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from bonobot.accounts.models.abstract_models import MAX_COUNTED
from bonobot.core.documentation.learn_more import build_error_code_url
from bonobot.core.i18n import localization, time_zones
from bonobot.core.i18n.localization import (
    format_dollars,
    format_number,
    format_percent,
    localize_if_translatable,
    localize_text,
)
from bonobot.core.text.amounts import MICROUSD_PER_USD
from bonobot.core.text.argument_summary import summarize_arguments
from bonobot.core.text.markdown_html import render_markdown
from bonobot.core.text.syntax_highlighting import (
    MAX_SHOWN_LENGTH,
    JsonLine,
    highlight_json,
    render_sentence,
)
from bonobot.core.text.untrusted_text import make_visible

register = template.Library()
register.filter("argument_summary", summarize_arguments)
register.filter("as_json", highlight_json)
register.filter("thousands", format_number)
register.simple_tag(time_zones.get_zone_name, name="zone_name")

# The tone and icon of states; everything else is neutral. The word is next to the icon: see
# `badge`.
STATE_STYLES = {
    **dict.fromkeys(("connected", "approved", "ok", "done"), ("good", "check_circle")),
    **dict.fromkeys(("allow", "usable", "on", "accept"), ("good", "check_circle")),
    **dict.fromkeys(("connecting", "running", "open", "intent"), ("busy", "progress_activity")),
    "queued": ("busy", "hourglass_empty"),
    **dict.fromkeys(("waiting", "ask"), ("warn", "schedule")),
    "pending": ("warn", "fact_check"),
    "changed": ("warn", "difference"),
    "needs_reauth": ("warn", "key"),
    **dict.fromkeys(("warning", "soft"), ("warn", "warning")),
    **dict.fromkeys(("error", "failed", "hard"), ("bad", "cancel")),
    **dict.fromkeys(("refused", "rejected", "deny", "denied", "revoked"), ("trust", "block")),
    "expired": ("plain", "timer_off"),
    "disconnected": ("plain", "link_off"),
    "unknown": ("plain", "help"),
}
NEUTRAL_STYLE = ("plain", "do_not_disturb_on")
# Labels of states, units and periods; other values are shown as they are.
STATE_LABELS = {
    "allow": _lazy("allow"),
    "ask": _lazy("ask"),
    "deny": _lazy("deny"),
    "ok": _lazy("succeeded"),
    "error": _lazy("failed"),
    "refused": _lazy("denied"),
    "unknown": _lazy("unknown"),
    "cancelled": _lazy("canceled"),
    "disabled": _lazy("disabled"),
    "open": _lazy("running"),
    "failed": _lazy("failed"),
    "warning": _lazy("warning"),
    "pending": _lazy("pending review"),
    "approved": _lazy("approved"),
    "changed": _lazy("changed"),
    "tokens": _lazy("tokens"),
    "calls": _lazy("calls"),
    "seconds": _lazy("seconds"),
    "day": _lazy("per day"),
    "month": _lazy("per month"),
    "total": _lazy("in total"),
    "attach": _lazy("Attach"),
    "detach": _lazy("Detach"),
    "unchanged": _lazy("unchanged"),
}
APPROVAL_STATES = {
    "waiting": ("warn", "schedule", _lazy("Pending")),
    "approved": ("good", "check_circle", _lazy("Approved")),
    "approved_changed": ("good", "check_circle", _lazy("Approved with changes")),
    "denied": ("trust", "block", _lazy("Denied")),
    "expired": ("plain", "timer_off", _lazy("Expired")),
    "withdrawn": ("plain", "do_not_disturb_on", _lazy("Canceled")),
}
EFFECTS = {
    "allow": ("good", "check_circle", _lazy("Allow")),
    "ask": ("warn", "schedule", _lazy("Ask")),
    "deny": ("trust", "block", _lazy("Deny")),
}
MAX_PART_LENGTH = 4096
# The tone, icon and label of outcomes; the values of `AuditRow.Outcome`, and `pending`.
OUTCOMES = {
    "ok": ("good", "check_circle", _lazy("Succeeded")),
    "error": ("bad", "cancel", _lazy("Failed")),
    "refused": ("trust", "block", _lazy("Denied")),
    "pending": ("warn", "schedule", _lazy("Pending approval")),
    "approved": ("warn", "hourglass_top", _lazy("Approved, not run yet")),
    "cancelled": ("plain", "do_not_disturb_on", _lazy("Canceled")),
    "unknown": ("plain", "help", _lazy("Unknown")),
    "open": ("busy", "progress_activity", _lazy("Running")),
}
HUE_STEP = 15  # degrees: closer hues look the same


# -- Texts -----------------------------------------------------------------------------------------


@register.filter
def shown(value: Any, limit: int | None = None) -> str:
    """Return untrusted text with hidden characters visible; the template escapes it."""
    return make_visible(str(value if value is not None else ""), limit)


@register.filter
def shown_list(values: Iterable[Any], limit: int) -> str:
    """Return untrusted texts with commas between them; `limit` is in characters for each."""
    return ", ".join(shown(value, limit) for value in values)


@register.filter
def shown_lines(lines: Iterable[str], limit: int) -> str:
    """Return untrusted lines as one text; `limit` is in characters for each line."""
    return "\n".join(shown(line, limit) for line in lines)


@register.filter
def described(text: Any, limit: int | None = None) -> str:
    """Return untrusted text unchanged, or Bonobot's own text localized."""
    return make_visible(localize_if_translatable(text if isinstance(text, str) else ""), limit)


@register.filter
def marked(text: Any, limit: int | None = None) -> SafeString:
    """Return text written by users, unchanged, with `names` set as code."""
    return render_sentence(str(text if text is not None else ""), limit)


@register.simple_tag
def marked_text(parts: Iterable[tuple[str, bool]]) -> SafeString:
    """Return the parts of an untrusted text, with findings marked."""
    return format_html_join(
        "",
        "{}",
        (
            (format_html("<mark>{}</mark>" if is_finding else "{}", shown(text, MAX_PART_LENGTH)),)
            for text, is_finding in parts
        ),
    )


@register.filter
def sentence(text: Any, limit: int | None = None) -> SafeString:
    """Return one of Bonobot's sentences, localized, with `names` set as code.

    It may quote untrusted text.
    """
    return render_sentence(localize_text(text), limit)


@register.filter
def plain(text: Any, limit: int | None = None) -> str:
    """Return one of Bonobot's sentences, localized, as plain text for an attribute."""
    return make_visible(localize_text(text), limit)


@register.filter
def as_markdown(text: Any) -> SafeString | None:
    """Return untrusted Markdown as safe HTML with copy buttons; None if it stays plain text."""
    html = render_markdown(str(text or ""))
    if html is None:
        return None
    copy_button = format_html(
        '<button type="button" class="bb-tool" data-copies-code title="{0}" aria-label="{0}">'
        "{1}</button>",
        _("Copy code"),
        icon("content_copy"),
    )
    # The text has no tags of its own: these are ours.
    for tag, replacement in (
        ("<pre>", '<div class="bb-md-code"><pre class="bb-code" tabindex="0">'),
        ("</pre>", f"</pre>{copy_button}</div>"),
        ("<table>", '<div class="bb-md-table" tabindex="0"><table>'),
        ("</table>", "</table></div>"),
    ):
        html = html.replace(tag, replacement)
    return mark_safe(html)  # noqa: S308 -- sanitized by render_markdown


@register.filter
def maybe_json(text: Any) -> SafeString | str:
    """Return a result: highlighted if it is a JSON object or array, else as visible text."""
    parsed_text = str(text)
    if parsed_text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return highlight_json(json.loads(parsed_text))
    return make_visible(parsed_text, MAX_SHOWN_LENGTH)


@register.simple_tag
def json_lines(lines: Iterable[JsonLine]) -> SafeString:
    """Return highlighted lines; a marked one says why at its right."""
    return format_html_join(
        "",
        '<div class="{}"><span>{}\n</span>{}</div>',
        (
            (
                "bb-marked" if line.is_marked else "",
                line.html,
                format_html("<i>{}</i>", _("matches %(rule)s") % {"rule": shown(line.mark, 120)})
                if line.mark
                else "",
            )
            for line in lines
        ),
    )


@register.simple_tag
def line_changes(lines: Iterable[tuple[str, str]]) -> SafeString:
    """Return lines with their kinds (`added`, `removed`, `same`) as a colored block."""
    rows = format_html_join("", '<span class="bb-{}">{}</span>', lines)
    return format_html('<pre class="bb-code bb-diff" tabindex="0">{}</pre>', rows)


@register.simple_tag
def parameter_names(parameters: Iterable[Mapping[str, Any]]) -> SafeString:
    """Return the names of an operation's parameters; required ones have an asterisk."""
    star = format_html('<span aria-label="{}">*</span>', _("required"))
    return format_html_join(
        ", ",
        "<code>{}</code>{}",
        (
            (shown(parameter["name"], 60), star if parameter.get("required") else "")
            for parameter in parameters
        ),
    )


@register.filter
def role_names(names: Any) -> str:
    """Return a list of roles, or of others who can change something, in the reader's language."""
    return localization.localize_names(str(names))


# -- States ----------------------------------------------------------------------------------------


@register.filter
def tone(state: Any) -> str:
    """Return the color of a state: good, busy, warn, bad, trust or plain."""
    return _get_style(state)[0]


def _get_style(state: Any) -> tuple[str, str]:
    return STATE_STYLES.get(str(state), NEUTRAL_STYLE)


def render_state(tone_name: str, icon_name: str, text: Any, title: Any = "") -> SafeString:
    """Return a state as icon and word; only the icon has the color of the tone."""
    title_attribute = format_html(' title="{}"', title) if title else ""
    return format_html(
        '<span class="bb-state" data-tone="{}"{}>{}<span class="bb-state-word">{}</span></span>',
        tone_name,
        title_attribute,
        icon(icon_name),
        text,
    )


@register.simple_tag(name="badge")
def render_badge(state: Any, text: Any = None, title: Any = "") -> SafeString:
    """Return a state as icon and word: its own word, or another text."""
    return render_state(*_get_style(state), state_label(state if text is None else text), title)


@register.simple_tag
def outcome(state: str, title: Any = "") -> SafeString:
    """Return an outcome as icon and word."""
    return render_state(*OUTCOMES.get(str(state), OUTCOMES["unknown"]), title)


@register.filter
def outcome_word(state: str) -> Any:
    """Return the word of an outcome."""
    return OUTCOMES.get(state, OUTCOMES["unknown"])[2]


@register.simple_tag
def approval_outcome(state: str, is_changed: bool = False) -> SafeString:
    """Return the state of an approval as icon and word; `is_changed`: the arguments."""
    shown_state = "approved_changed" if is_changed else str(state)
    return render_state(*APPROVAL_STATES.get(shown_state, APPROVAL_STATES["expired"]))


@register.simple_tag
def rule_effect(effect: str) -> SafeString:
    """Return the effect of a rule as icon and word."""
    return render_state(*EFFECTS.get(str(effect), EFFECTS["deny"]))


@register.filter
def state_label(state: Any) -> Any:
    """Return the localized label of a state; other values stay unchanged."""
    return STATE_LABELS.get(str(state), state)


@register.simple_tag
def error_code(code: str) -> SafeString | str:
    """Return an error code as a link to its documentation, small beside its sentence."""
    if not code:
        return ""
    return format_html(
        '<a class="bb-error-code" href="{}" title="{}"><code>{}</code></a>',
        build_error_code_url(code),
        _("Documentation of this code"),
        code,
    )


# -- Times -----------------------------------------------------------------------------------------


@register.filter
def ago(moment: Any) -> SafeString | str:
    """Return a relative time as a `time` element with the absolute time."""
    if not isinstance(moment, datetime):
        return _("never")
    now = timezone.now()
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 60:
        text = _("just now") if seconds >= 0 else _("in a moment")
    elif seconds < 0:
        text = _("in %(time)s") % {"time": time_left(moment)}
    else:
        text = _("%(time)s ago") % {"time": timesince(moment, now, depth=1)}
    return _render_time(moment, time_zones.format_datetime(moment, seconds=True), text)


@register.filter
def time_left(moment: datetime) -> str:
    """Return the time until `moment` in one unit, rounded: 23 hours and 59 minutes are "1 day"."""
    now = timezone.now()
    left = moment - now
    units = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1))
    half_unit = next((unit / 2 for unit in units if left >= unit), timedelta())
    return timesince(now, moment + half_unit, depth=1)


@register.filter
def age(moment: datetime) -> str:
    """Return how long ago something was in a narrow column: "now", "4 min", "3 h", or "2 d"."""
    minutes = int((timezone.now() - moment).total_seconds() // 60)
    if minutes < 1:
        return _("now")
    if minutes < 60:
        return _("%(n)d min") % {"n": minutes}
    if minutes < 24 * 60:
        return _("%(n)d h") % {"n": minutes // 60}
    return _("%(n)d d") % {"n": minutes // (24 * 60)}


@register.filter
def moment(value: datetime | None, precision: str = "") -> SafeString | str:
    """Return a time in the user's time zone as a `time` element, with seconds if asked."""
    if value is None:
        return "–"
    return _render_time(value, "", clock(value, precision))


@register.filter
def time_of_day(value: datetime) -> SafeString:
    """Return a time for a row of a log, in the user's time zone, as a `time` element."""
    return _render_time(value, clock(value, "seconds"), time_zones.format_time_of_day(value))


@register.filter
def clock(value: datetime, precision: str = "") -> str:
    """Return a time in the user's time zone as text for an attribute."""
    return time_zones.format_datetime(value, seconds=precision == "seconds")


def _render_time(value: datetime, title: str, text: str) -> SafeString:
    title_attribute = format_html(' title="{}"', title) if title else ""
    return format_html('<time datetime="{}"{}>{}</time>', value.isoformat(), title_attribute, text)


@register.filter
def milliseconds(value: Any) -> str:
    """Return a duration with its unit; a dash if unknown."""
    if not isinstance(value, int | float):
        return "–"
    if value < 1_000:
        return f"{value:.0f} ms"
    length, unit = (value / 1_000, "s") if value < 60_000 else (value / 60_000, "min")
    return f"{format_number(length, '.1f')} {unit}"


@register.filter
def step_length(step: timedelta) -> str:
    """Return the length of a step of a chart: minutes, hours or days."""
    minutes = int(step.total_seconds() // 60)
    if minutes < 60:
        return ngettext("%(n)d minute", "%(n)d minutes", minutes) % {"n": minutes}
    if minutes < 24 * 60:
        return ngettext("%(n)d hour", "%(n)d hours", minutes // 60) % {"n": minutes // 60}
    return ngettext("%(n)d day", "%(n)d days", step.days) % {"n": step.days}


# -- Numbers ---------------------------------------------------------------------------------------


@register.filter
def tokens(count: int) -> str:
    """Return a number of tokens; a dash if none were counted."""
    return format_number(count) if count else "–"


@register.filter
def counted(count: int) -> str:
    """Return a number from `build_capped_count`, with `+` if there are more."""
    return f"{format_number(min(count, MAX_COUNTED))}{'+' if count > MAX_COUNTED else ''}"


@register.simple_tag
def linked_number(number: int | None, url: str, unit: str = "") -> SafeString | str:
    """Return a link with a number, or with a time for the unit `ms`; a dash for none."""
    if not number:
        return "–"
    text = milliseconds(number) if unit == "ms" else format_number(number)
    return format_html('<a href="{}">{}</a>', url, text)


@register.filter
def percent(value: Any) -> str:
    """Return a percentage; values below 100 are never rounded up to 100."""
    if not isinstance(value, int | float):
        return "–"
    if 99 < value < 100:
        return format_percent(min(value, 99.99), ".2f")
    return format_percent(value, ".0f" if value >= 100 or not value else ".1f")


@register.filter
def whole_percent(value: int) -> str:
    """Return a percentage without decimals."""
    return format_percent(value, ",d")


@register.filter
def percent_of(part: int | None, total: int | None) -> int:
    """Return `part` of `total` in percent, 0 to 100."""
    return min(100, round(100 * (part or 0) / total)) if total else 0


@register.filter
def dollars(microusd: int | None) -> str:
    """Return micro-dollars as dollars, or a dash; sums below ten cents keep their digits."""
    amount = (microusd or 0) / MICROUSD_PER_USD
    text = format_dollars(amount, ",.2f" if amount >= 0.1 or not amount else ".4f")
    return "–" if microusd is None else text


@register.filter
def cost(microusd: int, token_count: int) -> str:
    """Return a cost; a dash if it is zero because no tokens were counted, so that it is unknown."""
    return dollars(microusd if microusd or token_count else None)


def plain_dollars(microusd: int) -> str:
    """Return micro-dollars as a number of dollars, for an input."""
    return f"{microusd / MICROUSD_PER_USD:.6f}".rstrip("0").rstrip(".")


@register.filter
def amount(value: int | None, unit: str) -> str:
    """Return an amount in the unit of a budget."""
    return dollars(value or 0) if unit == "microusd" else format_number(value or 0)


@register.filter
def typed_amount(value: int, unit: str) -> str:
    """Return a limit as it is typed into an input: money in dollars."""
    return plain_dollars(value) if unit == "microusd" else str(value)


# -- Parts of pages --------------------------------------------------------------------------------


@register.simple_tag
def icon(name: str, css_class: str = "") -> SafeString:
    """Return a symbol of the icon font, which screen readers skip."""
    return _render_icon(str(name), str(css_class))


@lru_cache(maxsize=512)  # a page has thirty of the same few
def _render_icon(name: str, css_class: str) -> SafeString:
    names = f"material-symbols-outlined {css_class}".rstrip()
    return format_html('<span class="{}" aria-hidden="true">{}</span>', names, name)


@register.inclusion_tag("admin/parts/monogram.html")
def monogram(name: str, kind: str = "server", size: str = "") -> dict[str, Any]:
    """Show the first letter of a name: `kind` is server or agent, `size` empty or large.

    The hue depends on the name only, so that it is the same on every screen.
    """
    letter = next((character for character in str(name) if character.isalnum()), "?")
    hue = crc32(str(name).encode()) % (360 // HUE_STEP) * HUE_STEP
    return {"letter": letter.upper(), "hue": hue, "kind": kind, "size": size}


@register.simple_block_tag
def note(content: str, icon_name: str, tone_name: str = "", role: str = "") -> SafeString:
    """Show the content as a note with a symbol; `role` is status or alert, or empty."""
    tone_attribute = format_html(' data-tone="{}"', tone_name) if tone_name else ""
    role_attribute = format_html(' role="{}"', role) if role else ""
    return format_html(
        '<div class="bb-note"{}{}>{}<div>{}</div></div>',
        tone_attribute,
        role_attribute,
        icon(icon_name),
        content,
    )


@register.simple_block_tag
def when_empty(
    content: str, icon_name: str = "", *, id: str = "", hidden: bool = False
) -> SafeString:
    """Show the content in place of a list without rows: what is missing, and one button."""
    return format_html(
        '<div class="bb-empty"{}{}>{}{}</div>',
        format_html(' id="{}"', id) if id else "",
        " hidden" if hidden else "",
        icon(icon_name) if icon_name else "",
        content,
    )


@register.simple_block_tag
def panel(content: str, title: Any, *, aside: Any = "") -> SafeString:
    """Show the content as a part of a page with a title; `aside` is a note beside the title."""
    return format_html(
        '<section class="bb-panel"><header><h3>{}</h3>{}</header>{}</section>',
        title,
        format_html('<span class="bb-quiet bb-small">{}</span>', aside) if aside else "",
        content,
    )


@register.simple_block_tag
def table(content: str, css_class: str = "") -> SafeString:
    """Show the content as a table that scrolls sideways if the screen is narrower."""
    names = f"bb-table {css_class}".rstrip()
    return format_html(
        '<div class="bb-scroll" tabindex="0"><table class="{}">{}</table></div>', names, content
    )


@register.inclusion_tag("admin/parts/post_button.html", takes_context=True)
def post_button(
    context: Any,
    url: str,
    text: str,
    *,
    title: str = "",
    icon_name: str = "",
    css_class: str = "",
    **fields: Any,
) -> dict[str, Any]:
    """Show a button that posts to a URL; `fields` are sent with it."""
    return {
        "request": context["request"],
        "url": url,
        "text": text,
        "title": title,
        "icon": icon_name,
        "css_class": css_class,
        "fields": fields,
    }


@register.simple_tag
def add_button(changelist: Any) -> dict[str, Any]:
    """Return the words and URL of the button that adds a row to a list."""
    admin, opts = changelist.model_admin, changelist.opts
    url_name = admin.add_url_name or f"{opts.app_label}_{opts.model_name}_add"
    default_text = _("Add %(name)s") % {"name": opts.verbose_name}
    return {"url": reverse(f"admin:{url_name}"), "text": admin.add_label or default_text}


@register.filter
def field_text(field: Any) -> str:
    """Return the value of a form field as text, for people who can't change it."""
    value = field.value()
    if isinstance(value, bool):
        return _("Yes") if value else _("No")
    titles = dict(getattr(field.field, "choices", ()))
    choices = {str(key): localization.capitalize_words(titles[key]) for key in titles}
    if isinstance(value, list | tuple):
        return ", ".join(choices.get(str(item), str(item)) for item in value)
    text = choices.get(str(value), value)
    return format_number(text) if isinstance(text, int) else str(text if text is not None else "")


@register.filter
def invalid_fields(form: Any) -> list[Any]:
    """Return the fields of a form that have an error, in the order of the form."""
    return [field for field in form if field.errors] if hasattr(form, "fields") else []


@register.simple_tag(takes_context=True)
def filter_input(context: Any, name: str, label: Any, suggestions: str = "") -> SafeString:
    """Show a text input with the value that a list is filtered by.

    `suggestions` is the ID of a `datalist`.
    """
    attributes = {"list": suggestions, "autocomplete": "off"} if suggestions else {}
    return format_html(
        '<label>{}<input class="bb-input bb-slim" name="{}" value="{}"{}></label>',
        label,
        name,
        context["request"].GET.get(name, ""),
        flatatt(attributes),
    )


@register.simple_tag(takes_context=True)
def breadcrumbs(context: Any) -> list[dict[str, Any]]:
    """Return the breadcrumbs: the active navigation entries, the object, its tab, and its page.

    A page without an object has its title instead. The last one, the page, has no link.
    """
    if context.get("is_problem_page"):
        return [{"title": context["title"], "link": ""}]
    items: Iterable[Any] = getattr(context.get("sidebar_navigation"), "trail", ())
    trail = [{"title": item.title, "link": item.link} for item in items]
    if not trail or trail[-1]["link"] != context["request"].path:
        trail += _list_page_crumbs(context)
    trail[-1] = trail[-1] | {"link": ""}
    return trail


def _list_page_crumbs(context: Any) -> list[dict[str, Any]]:
    instance = context.get("original") or context.get("object")
    tabs: list[dict[str, Any]] = context.get("tabs") or []
    if instance is None or len(tabs) < 2:
        changelist = context.get("cl")
        title = instance or context.get("title") or ""
        if changelist is not None:
            title = capfirst(changelist.opts.verbose_name_plural)
        return [{"title": make_visible(str(title), 80), "link": ""}]
    active = [tab for tab in tabs if tab["active"]]
    # The first page of a tab is the tab itself.
    active += [page for tab in active for page in tab["pages"][1:] if page["active"]]
    crumbs = [{"title": item["title"], "link": item["url"]} for item in active]
    return [{"title": make_visible(str(instance), 80), "link": tabs[0]["url"]}, *crumbs]


@register.simple_tag(takes_context=True)
def page_title(context: Any) -> str:
    """Return the title of the page for the browser: the breadcrumbs, the page first."""
    titles = [str(crumb["title"]) for crumb in reversed(breadcrumbs(context))]
    return " · ".join(filter(None, [*titles, "Bonobot"]))
