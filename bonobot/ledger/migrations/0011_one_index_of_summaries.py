from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ("ledger", "0010_summaries_by_calls"),
    ]

    operations = [
        # The release before has no summaries; what reads them finds the same in the other index.
        migrations.RemoveIndex(model_name="summary", name="ledger_summary_most"),
    ]
