"""Where the resources of tenants are, below /api/."""

from django.urls import path

from bonobot.tenancy.api.audit import Audit, AuditEntry, AuditExport
from bonobot.tenancy.api.me import Me, MySessions
from bonobot.tenancy.api.members import Member, MemberPassword, Members, MemberSecondFactor
from bonobot.tenancy.api.providers import CheckProvider, OneProvider, Providers
from bonobot.tenancy.api.usage import Usage, UsageExport

urlpatterns = [
    path("identity-providers", Providers.as_view(), name="providers"),
    path("identity-providers/<str:provider_id>", OneProvider.as_view(), name="provider"),
    path(
        "identity-providers/<str:provider_id>/check", CheckProvider.as_view(), name="provider-check"
    ),
    path("audit", Audit.as_view(), name="audit"),
    path("audit/export", AuditExport.as_view(), name="audit-export"),
    path("audit/<str:audit_id>", AuditEntry.as_view(), name="audit-entry"),
    path("usage", Usage.as_view(), name="usage"),
    path("usage/export", UsageExport.as_view(), name="usage-export"),
    path("me", Me.as_view(), name="me"),
    path("me/sessions", MySessions.as_view(), name="my-sessions"),
    path("members", Members.as_view(), name="members"),
    path("members/<str:member_id>", Member.as_view(), name="member"),
    path(
        "members/<str:member_id>/password-reset",
        MemberPassword.as_view(),
        name="member-password",
    ),
    path(
        "members/<str:member_id>/second-factor",
        MemberSecondFactor.as_view(),
        name="member-second-factor",
    ),
]
