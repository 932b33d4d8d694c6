"""The key that OAuth tokens are bound to (DPoP)."""

import bonobot.core.crypto.encrypted_fields
from django.db import migrations


class Migration(migrations.Migration):
    """Adds an encrypted column."""

    dependencies = [
        ('mcp_servers', '0009_definition_rejections'),
    ]

    operations = [
        migrations.AddField(
            model_name='oauthgrant',
            name='dpop_key',
            field=bonobot.core.crypto.encrypted_fields.SealedTextField(blank=True, db_default='', default=''),
        ),
    ]
