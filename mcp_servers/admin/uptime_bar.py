"""The bar that shows when a server was available."""

from collections.abc import Sequence
from datetime import datetime, tzinfo
from functools import lru_cache

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import get_language
from django.utils.translation import gettext as _t

from bonobot.accounts.templatetags.display import percent
from bonobot.core.i18n import time_zones
from mcp_servers.health.uptime import UptimeSegment


def render_uptime_bar(segments: Sequence[UptimeSegment], *, tiny: bool = False) -> SafeString:
    """Render the segments as a bar; titles show their start time.

    Doesn't use a template, because a list shows about a thousand segments.
    """
    checked = [segment.up for segment in segments if segment.up is not None]
    counts = {"n": sum(uptime < 100 for uptime in checked), "checked": len(checked)}
    locale = str(get_language()), time_zones.get_reader_time_zone()
    return format_html(
        '<div class="bb-strip bb-timeline{}" role="img" aria-label="{}">{}</div>',
        " bb-tiny" if tiny else "",
        _t("Server availability: failures in %(n)d of %(checked)d checked periods") % counts,
        SafeString("".join(_render_segment(segment, locale) for segment in segments)),
    )


def _render_segment(segment: UptimeSegment, locale: tuple[str, tzinfo]) -> SafeString:
    begins = segment.begins.replace(second=0, microsecond=0)
    return _render_known_segment(segment.tone, begins, segment.up, locale)


@lru_cache(maxsize=1_024)
def _render_known_segment(
    tone: str, begins: datetime, uptime: float | None, _locale: tuple[str, tzinfo]
) -> SafeString:
    """Render a segment; the servers of a list have the same hours, most with the same result."""
    text = _t("not checked") if uptime is None else percent(uptime)
    title = f"{time_zones.format_datetime(begins)} · {text}"
    return format_html('<i data-tone="{}" title="{}"></i>', tone, title)
