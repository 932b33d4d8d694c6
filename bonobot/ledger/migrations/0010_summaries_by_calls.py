from django.db import migrations, models

from bonobot.lib.migrating import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("ledger", "0009_verification"),
    ]

    operations = [
        AddIndexOnline(
            model_name="summary",
            index=models.Index(
                fields=[
                    "organization_id",
                    "dimension",
                    "grain",
                    "begins",
                    "calls",
                    "turns",
                    "subject",
                ],
                name="ledger_summary_busiest",
            ),
        ),
    ]
