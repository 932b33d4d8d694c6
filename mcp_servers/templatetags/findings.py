"""Template filters for the findings of scans."""

import re
from typing import Any

from django import template
from django.utils.translation import gettext_lazy as _

from bonobot.core.text.untrusted_text import make_visible

register = template.Library()

MAX_LENGTH = 60
# Labels of the rules that find instructions; other rules are named like their finding.
FINDING_LABELS = {
    "asks_for_context": _("asks for the conversation"),
    "asks_for_secrets": _("asks for secrets"),
    "claims_authority": _("claims authority"),
    "disables_safety": _("disables safety rules"),
    "keep_from_user": _("hides from the user"),
    "orders_the_model": _("gives the model orders"),
    "other_tool_named": _("names another tool"),
    "other_tools_first": _("calls other tools first"),
    "override_rules": _("overrides instructions"),
    "passes_data_on": _("sends data elsewhere"),
    "resembles_an_attack": _("resembles an attack"),
    "resembles_an_injection": _("resembles a prompt injection"),
    "sensitive_data": _("sensitive data"),
}


# The rules in the excerpt of a finding: `88 %: “as the administrator” (claims_authority)`.
RULE_NAMES = re.compile(r"\(([a-z_]+(?:, [a-z_]+)*)\)")


@register.filter
def name_rules(excerpt: Any) -> str:
    """Return the excerpt of a finding with labels instead of the names of rules."""
    return RULE_NAMES.sub(
        lambda match: f"({', '.join(map(finding_label, match[1].split(', ')))})", str(excerpt)
    )


@register.filter
def finding_label(rule: Any) -> str:
    """Return the label of the rule of a finding."""
    label = FINDING_LABELS.get(rule)
    return str(label) if label else make_visible(str(rule).replace("_", " "), MAX_LENGTH)
