"""Add the arguments that a call was requested with, if its approver changed them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds one field."""

    dependencies = [("agents", "0014_pending_call_ids")]

    operations = [
        migrations.AddField(
            model_name="approval",
            name="requested_arguments",
            field=models.JSONField(null=True, verbose_name="requested arguments"),
        ),
    ]
