"""Sessions of gateway clients that any process can continue."""

import bonobot.core.crypto.encrypted_fields
import django.db.models.deletion
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('agents', '0006_session_crashes'),
        ('tenancy', '0002_rename_fields'),
    ]

    operations = [
        migrations.CreateModel(
            name='GatewaySessionState',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('key_digest', models.CharField(max_length=64, unique=True)),
                ('owner_key', models.CharField(max_length=255)),
                ('params', models.JSONField(default=dict)),
                ('log_level', models.CharField(max_length=16)),
                ('watched', models.JSONField(default=dict)),
                ('list_digests', models.JSONField(default=dict)),
                ('used_at', models.DateTimeField(db_index=True)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
            ],
            options={
                'verbose_name': 'gateway session',
                'verbose_name_plural': 'gateway sessions',
                'db_table': 'agents_gateway_session',
            },
        ),
        migrations.CreateModel(
            name='GatewaySessionMessage',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('sender', models.UUIDField()),
                ('body', bonobot.core.crypto.encrypted_fields.SealedJSONField(default=dict, label='agents.mcp_session.message')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
                ('state', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='messages', to='agents.gatewaysessionstate')),
            ],
            options={
                'verbose_name': 'gateway session message',
                'verbose_name_plural': 'gateway session messages',
                'db_table': 'agents_gateway_session_message',
                'ordering': ('created_at', 'id'),
            },
        ),
    ]
