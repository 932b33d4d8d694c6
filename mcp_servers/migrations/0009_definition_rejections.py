"""Rejections of definitions in a review."""


from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds four columns; rejected definitions leave the index of those that wait."""

    dependencies = [
        ('mcp_servers', '0008_rename_sandbox'),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name='definition',
            name='definition_waits',
        ),
        migrations.AddField(
            model_name='definition',
            name='rejected_at',
            field=models.DateTimeField(blank=True, null=True, verbose_name='rejected'),
        ),
        migrations.AddField(
            model_name='definition',
            name='rejected_by',
            field=models.CharField(blank=True, db_default='', default='', max_length=255, verbose_name='rejected by'),
        ),
        migrations.AddField(
            model_name='definition',
            name='rejected_digest',
            field=models.CharField(blank=True, db_default='', default='', max_length=64),
        ),
        migrations.AddField(
            model_name='definition',
            name='rejection_reason',
            field=models.TextField(blank=True, db_default='', default='', verbose_name='reason for the rejection'),
        ),
        migrations.AddIndex(
            model_name='definition',
            index=models.Index(condition=models.Q(('present', True), models.Q(('pinned_digest', models.F('digest')), _negated=True), ('fault', ''), models.Q(('rejected_digest', models.F('digest')), _negated=True)), fields=['organization', 'server', 'pinned_digest'], name='definition_waits'),
        ),
    ]
