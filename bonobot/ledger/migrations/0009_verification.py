from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('ledger', '0008_rollups_by_server'),
    ]

    operations = [
        migrations.CreateModel(
            name='Verification',
            fields=[
                ('organization_id', models.UUIDField(primary_key=True, serialize=False)),
                ('statement', models.JSONField()),
            ],
        ),
    ]
