"""URLs of accounts below /api/."""

from django.urls import path

from bonobot.accounts.api.deletions import DeletionListView, RestoreDeletionView
from bonobot.accounts.api.identity_providers import (
    CheckIdentityProviderView,
    IdentityProviderDetailView,
    IdentityProviderListView,
)
from bonobot.accounts.api.me import MeView, MySessionsView
from bonobot.accounts.api.members import (
    MemberDetailView,
    MemberListView,
    MemberPasswordView,
    MemberSecondFactorView,
)
from bonobot.ledger.api.audit import AuditEntryView, AuditExportView, AuditListView
from bonobot.ledger.api.usage import UsageExportView, UsageView

urlpatterns = [
    path("identity-providers", IdentityProviderListView.as_view(), name="providers"),
    path(
        "identity-providers/<str:provider_id>",
        IdentityProviderDetailView.as_view(),
        name="provider",
    ),
    path(
        "identity-providers/<str:provider_id>/check",
        CheckIdentityProviderView.as_view(),
        name="provider-check",
    ),
    path("deletions", DeletionListView.as_view(), name="deletions"),
    path(
        "deletions/<str:deletion_id>/restore",
        RestoreDeletionView.as_view(),
        name="deletion-restore",
    ),
    path("audit", AuditListView.as_view(), name="audit"),
    path("audit/export", AuditExportView.as_view(), name="audit-export"),
    path("audit/<str:audit_id>", AuditEntryView.as_view(), name="audit-entry"),
    path("usage", UsageView.as_view(), name="usage"),
    path("usage/export", UsageExportView.as_view(), name="usage-export"),
    path("me", MeView.as_view(), name="me"),
    path("me/sessions", MySessionsView.as_view(), name="my-sessions"),
    path("members", MemberListView.as_view(), name="members"),
    path("members/<str:member_id>", MemberDetailView.as_view(), name="member"),
    path(
        "members/<str:member_id>/password-reset",
        MemberPasswordView.as_view(),
        name="member-password",
    ),
    path(
        "members/<str:member_id>/second-factor",
        MemberSecondFactorView.as_view(),
        name="member-second-factor",
    ),
]
