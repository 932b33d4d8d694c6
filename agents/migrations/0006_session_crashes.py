"""Add the identity of runners' processes, and counts of crashes that quarantine sessions."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds five fields."""

    dependencies = [("agents", "0005_agent_tools_in_prompt")]

    operations = [
        migrations.AddField(
            model_name="runner",
            name="machine",
            field=models.CharField(blank=True, db_default="", default="", max_length=128),
        ),
        migrations.AddField(
            model_name="runner",
            name="process_start",
            field=models.CharField(blank=True, db_default="", default="", max_length=32),
        ),
        migrations.AddField(
            model_name="session",
            name="crash_progress",
            field=models.PositiveBigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="session",
            name="crashes",
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="session",
            name="quarantined_at",
            field=models.DateTimeField(null=True, verbose_name="quarantined"),
        ),
    ]
