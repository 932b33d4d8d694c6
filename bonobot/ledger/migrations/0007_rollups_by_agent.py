from django.db import migrations, models

from bonobot.lib.migrating import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("ledger", "0006_summaries"),
    ]

    operations = [
        AddIndexOnline(
            model_name="rollup",
            index=models.Index(
                fields=["organization_id", "agent_id", "grain", "begins"],
                name="ledger_rollup_agent",
            ),
        ),
    ]
