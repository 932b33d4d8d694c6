"""Add the setting that lists tools in the system prompt."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds one field."""

    dependencies = [("agents", "0004_rename_fields")]

    operations = [
        migrations.AddField(
            model_name="agent",
            name="tools_in_prompt",
            field=models.BooleanField(
                db_default=False, default=False, verbose_name="list tools in the prompt"
            ),
        ),
    ]
