"""Where the resources of tenants are, below /api/."""

from django.urls import path

from bonobot.tenancy.api.audit import Audit, AuditEntry, AuditExport
from bonobot.tenancy.api.members import Members
from bonobot.tenancy.api.usage import Usage, UsageExport

urlpatterns = [
    path("audit", Audit.as_view(), name="audit"),
    path("audit/export", AuditExport.as_view(), name="audit-export"),
    path("audit/<str:audit_id>", AuditEntry.as_view(), name="audit-entry"),
    path("usage", Usage.as_view(), name="usage"),
    path("usage/export", UsageExport.as_view(), name="usage-export"),
    path("members", Members.as_view(), name="members"),
]
