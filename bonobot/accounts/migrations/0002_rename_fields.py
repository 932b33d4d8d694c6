"""Rename fields in the code; their columns keep their names."""

from django.db import migrations

from bonobot.core.crypto.encrypted_fields import SealedTextField
from bonobot.core.db.migration_operations import BatchedMigration, rename_field, rename_model


class Migration(BatchedMigration):
    """Renames a model and a field."""

    dependencies = [("tenancy", "0001_initial")]

    operations = [
        rename_field("Token", "fresh_until", "access_expires_at"),
        *rename_model("KeptAnswer", "StoredResponse", table="tenancy_keptanswer"),
        # Encrypted values are bound to the label under which they were encrypted.
        migrations.AlterField(
            "storedresponse",
            "body",
            SealedTextField(blank=True, default="", label="tenancy.keptanswer.body"),
        ),
    ]
