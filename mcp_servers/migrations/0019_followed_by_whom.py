from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('mcp_servers', '0018_rounds'),
    ]

    operations = [
        migrations.AddField(
            model_name='followed',
            name='subject',
            field=models.UUIDField(null=True),
        ),
    ]
