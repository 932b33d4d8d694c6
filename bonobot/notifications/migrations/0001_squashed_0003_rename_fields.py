import bonobot.core.crypto.encrypted_fields
import django.db.models.deletion
import uuid
from django.db import migrations, models

from bonobot.core.db.migration_operations import BatchedMigration


class Migration(BatchedMigration):

    replaces = [('notices', '0001_initial'), ('notices', '0002_rename_models'), ('notices', '0003_rename_fields')]

    initial = True

    dependencies = [
        ('tenancy', '0001_squashed_0006_issuer_help_text'),
    ]

    operations = [
        migrations.CreateModel(
            name='NotificationChannel',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('name', models.CharField(max_length=255, verbose_name='name')),
                ('kind', models.CharField(choices=[('email', 'email'), ('webhook', 'webhook')], max_length=8, verbose_name='type')),
                ('addresses', models.JSONField(blank=True, default=list, verbose_name='addresses')),
                ('url', bonobot.core.crypto.encrypted_fields.SealedTextField(blank=True, default='', label='notices.channel.url', verbose_name='URL')),
                ('origin', models.CharField(blank=True, default='', max_length=255, verbose_name='origin')),
                ('secret', bonobot.core.crypto.encrypted_fields.SealedTextField(blank=True, default='', label='notices.channel.secret', verbose_name='signing secret')),
                ('allow_private', models.BooleanField(default=False, verbose_name='private address allowed')),
                ('events', models.JSONField(blank=True, default=list, verbose_name='events')),
                ('minimum_severity', models.CharField(choices=[('info', 'info'), ('warning', 'warning'), ('critical', 'critical')], db_column='minimum', default='info', max_length=8, verbose_name='minimum severity')),
                ('enabled', models.BooleanField(default=True, verbose_name='enabled')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
            ],
            options={
                'verbose_name': 'notification channel',
                'verbose_name_plural': 'notification channels',
                'db_table': 'notices_channel',
                'ordering': ('name',),
                'constraints': [models.UniqueConstraint(fields=('organization', 'name'), name='channel_name_once'), models.CheckConstraint(condition=models.Q(('kind__in', ['email', 'webhook'])), name='channel_kind')],
            },
        ),
        migrations.CreateModel(
            name='Notification',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('event', models.CharField(max_length=32, verbose_name='event')),
                ('severity', models.CharField(choices=[('info', 'info'), ('warning', 'warning'), ('critical', 'critical')], max_length=8, verbose_name='severity')),
                ('subject_type', models.CharField(max_length=64, verbose_name='affected object')),
                ('subject_id', models.CharField(max_length=255)),
                ('subject_name', models.CharField(max_length=255, verbose_name='affected object')),
                ('text', models.TextField(verbose_name='text')),
                ('link', models.CharField(blank=True, default='', max_length=500)),
                ('topic', models.CharField(max_length=255)),
                ('state', models.CharField(choices=[('waiting', 'pending'), ('sent', 'sent'), ('failed', 'failed'), ('withdrawn', 'canceled')], default='waiting', editable=False, max_length=9, verbose_name='status')),
                ('attempts', models.PositiveIntegerField(default=0, verbose_name='attempts')),
                ('next_attempt_at', models.DateTimeField(null=True, verbose_name='next attempt')),
                ('sent_at', models.DateTimeField(null=True, verbose_name='sent')),
                ('error', models.TextField(blank=True, default='', verbose_name='error')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
                ('channel', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='notices', to='notices.notificationchannel')),
            ],
            options={
                'verbose_name': 'notification',
                'verbose_name_plural': 'notifications',
                'db_table': 'notices_notice',
                'ordering': ('-created_at',),
                'indexes': [models.Index(condition=models.Q(('state', 'waiting')), fields=['next_attempt_at'], name='notice_due'), models.Index(fields=['organization', '-created_at'], name='notice_by_age'), models.Index(fields=['channel', 'subject_id', '-created_at'], name='notice_of_subject')],
                'constraints': [models.UniqueConstraint(fields=('channel', 'event', 'topic'), name='notice_once')],
            },
        ),
    ]
