"""A picture of time: when a server was there, when it was away, and when nobody asked."""

from collections.abc import Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t

from bonobot.lib import zones
from bonobot.tenancy.templatetags.bonobot import percent
from mcp_servers.uptime import Segment


def timeline(pieces: Sequence[Segment], *, tiny: bool = False) -> SafeString:
    """Return the pieces as a strip, each with the moment that it begins at.

    A list shows a thousand pieces, so no template is rendered for them.
    """
    nobody, words = _t("nobody asked"), {100.0: percent(100)}
    drawn = []
    for piece in pieces:
        up = piece.up
        said = nobody if up is None else words.get(up) or percent(up)
        drawn.append((piece.tone, f"{zones.written(piece.begins)} · {said}"))
    return format_html(
        '<div class="bb-strip bb-timeline{}" role="img" aria-label="{}">{}</div>',
        " bb-tiny" if tiny else "",
        _t("When the server was there, oldest first"),
        format_html_join("", '<i data-tone="{}" title="{}"></i>', drawn),
    )
