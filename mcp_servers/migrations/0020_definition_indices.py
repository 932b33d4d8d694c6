from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("mcp_servers", "0019_followed_by_whom"),
        ("tenancy", "0012_single_sign_on"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="definition",
            index=models.Index(
                fields=["organization", "kind", "name", "server"], name="definition_by_names"
            ),
        ),
        migrations.AddIndex(
            model_name="definition",
            index=models.Index(
                condition=models.Q(
                    ("present", True),
                    models.Q(("pinned_digest", models.F("digest")), _negated=True),
                    ("fault", ""),
                ),
                fields=["organization", "server", "pinned_digest"],
                name="definition_waits",
            ),
        ),
        migrations.RemoveIndex(model_name="definition", name="definition_by_name"),
    ]
