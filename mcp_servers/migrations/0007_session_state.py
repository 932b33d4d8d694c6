"""Whether a server keeps state that the gateway sessions of a client must not share."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("mcp_servers", "0006_rename_fields")]

    operations = [
        migrations.AddField(
            model_name="server",
            name="session_state",
            field=models.CharField(
                choices=[("auto", "automatic"), ("none", "no"), ("kept", "yes")],
                db_default="auto",
                default="auto",
                help_text="If it doesn't, a client's gateway sessions share its processes.",
                max_length=4,
                verbose_name="keeps session state",
            ),
        ),
    ]
