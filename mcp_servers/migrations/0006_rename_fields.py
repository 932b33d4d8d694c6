"""Rename fields in the code; their columns keep their names."""

from django.db import models

from bonobot.core.db.migration_operations import (
    BatchedMigration,
    rename_field,
    rename_reverse_relation,
)


class Migration(BatchedMigration):
    """Renames 13 fields."""

    dependencies = [("mcp_servers", "0005_rename_models")]

    operations = [
        rename_field("BulkJob", "asked_by", "requested_by"),
        rename_field("BulkJob", "held_until", "lease_expires_at"),
        rename_field("BulkJobItem", "round", "job"),
        rename_field("BulkJobItem", "said", "confirmed"),
        rename_field("OAuthGrant", "authority", "authorization_server"),
        rename_field("OAuthGrant", "wanted_scope", "requested_scope"),
        rename_field("OAuthLogin", "authority", "authorization_server"),
        rename_field("Preset", "catalogue", "catalog"),
        rename_field("ResourceSubscription", "wanted_at", "last_requested_at"),
        rename_field("ResourceSubscription", "beat_at", "heartbeat_at"),
        rename_field("ChangeSubscription", "beat_at", "heartbeat_at"),
        rename_field("ChangeSubscription", "noticed_at", "notified_at"),
        rename_field("ChangeSubscription", "reread_after", "refresh_after"),
        rename_reverse_relation(
            "BulkJobItem",
            "job",
            models.ForeignKey(
                "mcp_servers.bulkjob", models.CASCADE, db_column="round_id", related_name="items"
            ),
        ),
        rename_reverse_relation(
            "ChangeSubscription",
            "server",
            models.OneToOneField(
                "mcp_servers.server", models.CASCADE, related_name="change_subscription"
            ),
        ),
    ]
