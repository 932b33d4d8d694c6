"""Servers of presets run in a sandbox; blank in a preset means the installation's default."""

from django.db import migrations, models


def put_presets_into_sandboxes(apps, schema_editor):
    """Sandbox the servers that were made from presets of the catalogue and confined in no way."""
    alias = schema_editor.connection.alias
    presets = apps.get_model("mcp_servers", "Preset").objects.using(alias)
    presets.filter(confinement="none").update(confinement="", network="")
    servers = apps.get_model("mcp_servers", "Server").objects.using(alias)
    unconfined = servers.filter(transport_type="stdio", confinement="none")
    unconfined.filter(preset__organization=None, preset__isnull=False).update(
        confinement="sandbox", network="egress"
    )


class Migration(migrations.Migration):
    dependencies = [("mcp_servers", "0002_preset_enabled_for")]

    operations = [
        migrations.AlterField(
            model_name="preset",
            name="confinement",
            field=models.CharField(
                blank=True, default="", max_length=10, verbose_name="sandbox"
            ),
        ),
        migrations.AlterField(
            model_name="preset",
            name="network",
            field=models.CharField(blank=True, default="", max_length=6, verbose_name="network"),
        ),
        migrations.AlterField(
            model_name="server",
            name="confinement",
            field=models.CharField(
                choices=[
                    ("sandbox", "sandbox: access only to the organization's own folders"),
                    ("none", "none: runs with Bonobot's own permissions"),
                    ("namespaces", "separate namespaces"),
                    ("bubblewrap", "bubblewrap: read-only file system"),
                ],
                default="none",
                max_length=10,
                verbose_name="sandbox",
            ),
        ),
        migrations.AlterField(
            model_name="server",
            name="network",
            field=models.CharField(
                choices=[
                    ("egress", "external addresses, subject to the egress rules"),
                    ("host", "the same network access as this host"),
                    ("none", "none (loopback only)"),
                ],
                default="host",
                max_length=6,
                verbose_name="network",
            ),
        ),
        migrations.RunPython(put_presets_into_sandboxes, migrations.RunPython.noop),
    ]
