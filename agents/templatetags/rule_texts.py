"""Template filters for policies: sentences about rules, and titles of modes."""

from django import template
from django.utils.safestring import SafeString

from agents.rule_texts import MODE_TITLES, build_rule_text
from bonobot.core.i18n.localization import localize_text
from bonobot.core.text.syntax_highlighting import render_sentence

register = template.Library()


@register.filter
def rule_text(rule: object) -> SafeString:
    """Return a localized sentence about a rule; blank for an ID without one."""
    return render_sentence(localize_text(build_rule_text(str(rule or ""))))


@register.filter
def mode_title(mode: str) -> object:
    """Return the title of a policy's mode."""
    return MODE_TITLES.get(mode, mode)
