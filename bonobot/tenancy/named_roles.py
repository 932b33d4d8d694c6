"""Roles by the names that people read."""

from django.utils.translation import gettext_lazy as _

from bonobot.tenancy.roles import Role

ROLE_CHOICES = [
    (Role.OWNER.value, _("owner")),
    (Role.OPERATOR.value, _("operator")),
    (Role.REVIEWER.value, _("reviewer")),
    (Role.AUDITOR.value, _("auditor")),
    (Role.MEMBER.value, _("member")),
]
