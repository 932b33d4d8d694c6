from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('ledger', '0001_squashed_0005_audit_named'),
    ]

    operations = [
        migrations.CreateModel(
            name='Summary',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('organization_id', models.UUIDField()),
                ('dimension', models.CharField(max_length=8)),
                ('grain', models.CharField(choices=[('hour', 'Hour'), ('day', 'Day')], max_length=4)),
                ('begins', models.DateTimeField()),
                ('subject', models.UUIDField()),
                ('event_type', models.CharField(max_length=64)),
                ('code', models.CharField(max_length=64)),
                ('rule', models.CharField(max_length=255)),
                ('agent_id', models.UUIDField(null=True)),
                ('agent_name', models.CharField(max_length=255)),
                ('server_id', models.UUIDField(null=True)),
                ('server_name', models.CharField(max_length=255)),
                ('tool_name', models.CharField(max_length=255)),
                ('model', models.CharField(max_length=255)),
                ('calls', models.BigIntegerField()),
                ('ok', models.BigIntegerField()),
                ('errors', models.BigIntegerField()),
                ('refused', models.BigIntegerField()),
                ('turns', models.BigIntegerField()),
                ('input_tokens', models.BigIntegerField()),
                ('output_tokens', models.BigIntegerField()),
                ('cost_microusd', models.BigIntegerField()),
                ('took_0', models.BigIntegerField(db_default=0, default=0)),
                ('took_1', models.BigIntegerField(db_default=0, default=0)),
                ('took_2', models.BigIntegerField(db_default=0, default=0)),
                ('took_3', models.BigIntegerField(db_default=0, default=0)),
                ('took_4', models.BigIntegerField(db_default=0, default=0)),
                ('took_5', models.BigIntegerField(db_default=0, default=0)),
                ('took_6', models.BigIntegerField(db_default=0, default=0)),
                ('took_7', models.BigIntegerField(db_default=0, default=0)),
                ('took_8', models.BigIntegerField(db_default=0, default=0)),
                ('took_9', models.BigIntegerField(db_default=0, default=0)),
                ('took_10', models.BigIntegerField(db_default=0, default=0)),
                ('took_11', models.BigIntegerField(db_default=0, default=0)),
                ('took_12', models.BigIntegerField(db_default=0, default=0)),
                ('took_13', models.BigIntegerField(db_default=0, default=0)),
                ('took_14', models.BigIntegerField(db_default=0, default=0)),
                ('took_15', models.BigIntegerField(db_default=0, default=0)),
                ('took_16', models.BigIntegerField(db_default=0, default=0)),
                ('took_17', models.BigIntegerField(db_default=0, default=0)),
                ('took_18', models.BigIntegerField(db_default=0, default=0)),
                ('took_19', models.BigIntegerField(db_default=0, default=0)),
                ('took_20', models.BigIntegerField(db_default=0, default=0)),
                ('took_21', models.BigIntegerField(db_default=0, default=0)),
                ('took_22', models.BigIntegerField(db_default=0, default=0)),
                ('took_23', models.BigIntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.AddField(
            model_name='counted',
            name='summed_since',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='counted',
            name='summed_version',
            field=models.BigIntegerField(db_default=-1, default=-1),
        ),
        migrations.AddField(
            model_name='rollup',
            name='last_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name='summary',
            index=models.Index(fields=['organization_id', 'dimension', 'grain', 'begins', 'subject', 'calls', 'turns'], name='ledger_summary_most'),
        ),
        migrations.AddConstraint(
            model_name='summary',
            constraint=models.UniqueConstraint(fields=('organization_id', 'dimension', 'grain', 'subject', 'begins'), name='ledger_summary_once'),
        ),
    ]
