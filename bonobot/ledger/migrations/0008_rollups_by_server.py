from django.db import migrations, models

from bonobot.lib.migrating import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("ledger", "0007_rollups_by_agent"),
    ]

    operations = [
        AddIndexOnline(
            model_name="rollup",
            index=models.Index(
                fields=["organization_id", "server_id", "grain", "begins"],
                name="ledger_rollup_server",
            ),
        ),
    ]
