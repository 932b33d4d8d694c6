"""URLs of accounts below /api/."""

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
from bonobot.accounts.api.resource_view import build_url_patterns
from bonobot.ledger.api.audit import AuditEntryView, AuditExportView, AuditListView
from bonobot.ledger.api.usage import UsageExportView, UsageView

urlpatterns = build_url_patterns(
    {
        "identity-providers": IdentityProviderListView,
        "identity-providers/<str:provider_id>": IdentityProviderDetailView,
        "identity-providers/<str:provider_id>/check": CheckIdentityProviderView,
        "deletions": DeletionListView,
        "deletions/<str:deletion_id>/restore": RestoreDeletionView,
        "audit": AuditListView,
        "audit/export": AuditExportView,
        "audit/<str:audit_id>": AuditEntryView,
        "usage": UsageView,
        "usage/export": UsageExportView,
        "me": MeView,
        "me/sessions": MySessionsView,
        "members": MemberListView,
        "members/<str:member_id>": MemberDetailView,
        "members/<str:member_id>/password-reset": MemberPasswordView,
        "members/<str:member_id>/second-factor": MemberSecondFactorView,
    }
)
