"""Rename models; the tables keep their names."""

from django.db import migrations

from bonobot.core.crypto.encrypted_fields import SealedTextField
from bonobot.core.db.migration_operations import BatchedMigration, rename_model


class Migration(BatchedMigration):
    """Renames 2 models."""

    dependencies = [("notices", "0001_initial")]

    operations = [
        *rename_model("Channel", "NotificationChannel", table="notices_channel"),
        *rename_model("Notice", "Notification", table="notices_notice"),
        # Encrypted values are bound to the label under which they were encrypted.
        migrations.AlterField(
            "notificationchannel",
            "url",
            SealedTextField("URL", blank=True, default="", label="notices.channel.url"),
        ),
        migrations.AlterField(
            "notificationchannel",
            "secret",
            SealedTextField(
                "signing secret", blank=True, default="", label="notices.channel.secret"
            ),
        ),
    ]
