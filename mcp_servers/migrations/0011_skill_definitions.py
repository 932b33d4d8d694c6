"""Skills as a kind of definitions."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds a choice; the column stays as it is."""

    dependencies = [
        ('mcp_servers', '0010_dpop_key'),
    ]

    operations = [
        migrations.AlterField(
            model_name='definition',
            name='kind',
            field=models.CharField(choices=[('tool', 'tool'), ('resource', 'resource'), ('resource_template', 'resource template'), ('skill', 'skill'), ('prompt', 'prompt'), ('instructions', 'instructions')], max_length=20, verbose_name='type'),
        ),
    ]
