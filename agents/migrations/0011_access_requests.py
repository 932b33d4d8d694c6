"""Requests of members for servers, tools and agents."""

import django.db.models.deletion
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds one table."""

    dependencies = [
        ('agents', '0010_agent_output_schema'),
        ('tenancy', '0003_deletions'),
    ]

    operations = [
        migrations.CreateModel(
            name='AccessRequest',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('kind', models.CharField(choices=[('server', 'server'), ('tool', 'tool'), ('agent', 'agent')], max_length=10, verbose_name='type')),
                ('target', models.CharField(max_length=255, verbose_name='name')),
                ('target_key', models.CharField(max_length=64)),
                ('reason', models.TextField(max_length=2000, verbose_name='reason')),
                ('requested_by_kind', models.CharField(max_length=10)),
                ('requested_by_id', models.CharField(max_length=255)),
                ('requested_by', models.CharField(max_length=255, verbose_name='requested by')),
                ('state', models.CharField(choices=[('waiting', 'pending'), ('approved', 'approved'), ('denied', 'denied'), ('expired', 'expired')], default='waiting', max_length=10, verbose_name='status')),
                ('expires_at', models.DateTimeField(verbose_name='expires')),
                ('answered_at', models.DateTimeField(null=True, verbose_name='answered')),
                ('answered_by', models.CharField(blank=True, default='', max_length=255, verbose_name='answered by')),
                ('message', models.TextField(blank=True, default='', verbose_name='message')),
                ('agent', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='agents.agent', verbose_name='agent')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
            ],
            options={
                'verbose_name': 'access request',
                'verbose_name_plural': 'access requests',
                'ordering': ('-created_at',),
                'indexes': [models.Index(fields=['organization', 'state', '-created_at'], name='access_inbox'), models.Index(fields=['state', 'expires_at'], name='access_by_expiry')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state', 'waiting')), fields=('organization', 'requested_by_kind', 'requested_by_id', 'target_key'), name='access_request_waits_once')],
            },
        ),
    ]
