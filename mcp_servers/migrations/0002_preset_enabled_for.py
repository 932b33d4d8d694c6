"""Stdio presets are enabled for each organization; who has a server of one keeps the preset."""

from django.db import migrations, models


def enable_used_presets(apps, schema_editor):
    """Enable each stdio preset of the catalogue for the organizations with a server made from it."""
    alias = schema_editor.connection.alias
    servers = apps.get_model("mcp_servers", "Server").objects.using(alias)
    links = apps.get_model("mcp_servers", "Preset").enabled_for.through.objects.using(alias)
    used = servers.filter(preset__organization=None, preset__transport_type="stdio")
    pairs = set(used.values_list("preset_id", "organization_id"))
    links.bulk_create(
        [links.model(preset_id=preset, organization_id=where) for preset, where in sorted(pairs)],
        ignore_conflicts=True,
    )


class Migration(migrations.Migration):
    dependencies = [
        ("mcp_servers", "0001_initial"),
        ("tenancy", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="preset",
            name="enabled_for",
            field=models.ManyToManyField(
                blank=True, editable=False, related_name="+", to="tenancy.organization"
            ),
        ),
        migrations.RunPython(enable_used_presets, migrations.RunPython.noop),
    ]
