"""Add the model endpoint of a session, and which endpoints members can choose."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds three fields."""

    dependencies = [("agents", "0008_prompt_caching_and_pdf_input")]

    operations = [
        migrations.AddField(
            model_name="modelendpoint",
            name="selectable",
            field=models.BooleanField(
                db_default=False, default=False, verbose_name="selectable for sessions"
            ),
        ),
        migrations.AddField(
            model_name="session",
            name="model_endpoint",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="agents.modelendpoint",
                verbose_name="model endpoint",
            ),
        ),
        migrations.AddField(
            model_name="recording",
            name="model_endpoint",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="agents.modelendpoint",
            ),
        ),
    ]
