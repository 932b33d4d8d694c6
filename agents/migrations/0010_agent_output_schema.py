"""Add the output schema of an agent."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds one field."""

    dependencies = [("agents", "0009_session_model_endpoint")]

    operations = [
        migrations.AddField(
            model_name="agent",
            name="output_schema",
            field=models.JSONField(blank=True, null=True, verbose_name="output schema"),
        ),
    ]
