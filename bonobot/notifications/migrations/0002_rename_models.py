"""Rename models; the tables keep their names."""

from django.db import migrations
from django.db.migrations.operations.base import Operation

from bonobot.core.crypto.encrypted_fields import SealedTextField


def rename(old: str, new: str, table: str) -> list[Operation]:
    """Rename a model in the state only: its table keeps its name."""
    return [
        migrations.AlterModelTable(name=old.lower(), table=table),
        migrations.RenameModel(old_name=old, new_name=new),
    ]


class Migration(migrations.Migration):
    """Renames 2 models."""

    dependencies = [("notices", "0001_initial")]

    operations = [
        *rename("Channel", "NotificationChannel", "notices_channel"),
        *rename("Notice", "Notification", "notices_notice"),
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
