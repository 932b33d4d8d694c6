"""Store with approvals the audit entry of the call that requested them."""

from datetime import timedelta

from django.db import migrations, models
from django.utils import timezone

# The entry of a request may have the clock of another process than its approval.
MAX_CLOCK_DIFFERENCE = timedelta(minutes=1)


def set_request_entries(apps, schema_editor):
    """Find the entries of the approvals that a call can still use, by their texts."""
    approvals = apps.get_model("agents", "Approval").objects
    entries = apps.get_model("ledger", "AuditRow").objects.filter(
        outcome="refused", code="approval_required"
    )
    usable = approvals.filter(state__in=("waiting", "approved"), expires_at__gt=timezone.now())
    for pk, organization_id, created_at in usable.values_list("pk", "organization", "created_at"):
        requests = entries.filter(
            organization_id=organization_id,
            opened_at__gte=created_at - MAX_CLOCK_DIFFERENCE,
            opened__contains=str(pk),
        )
        entry_id = requests.order_by("opened_at").values_list("pk", flat=True).first()
        approvals.filter(pk=pk).update(request_entry_id=entry_id)


class Migration(migrations.Migration):
    """Adds two fields, and sets one for approvals that can still be used."""

    dependencies = [
        ("agents", "0015_approval_requested_arguments"),
        ("ledger", "0012_summaries_of_unknown_outcomes"),
    ]

    operations = [
        migrations.AddField("approval", "request_entry_id", models.UUIDField(null=True)),
        migrations.AddField(
            "approval",
            "is_refusal_recorded",
            models.BooleanField(db_default=False, default=False),
        ),
        migrations.RunPython(set_request_entries, migrations.RunPython.noop),
    ]
