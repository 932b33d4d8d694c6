"""Links to the documentation."""

from typing import Any

from django import template

from bonobot.core.documentation.learn_more import build_documentation_url, find_documentation

register = template.Library()


@register.simple_tag(takes_context=True)
def documentation_url(context: Any, section: str = "") -> str:
    """Return the URL of a section of the documentation; blank: what documents the page."""
    if section:
        return build_documentation_url(section)
    match = context["request"].resolver_match
    name = (match.url_name if match else "") or ""
    return build_documentation_url(find_documentation(name))
