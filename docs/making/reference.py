"""The pages of the reference, made from the code that they describe: none can be out of date."""

import os
from functools import cache
from pathlib import Path

import django
import yaml

from bonobot.core.documentation.reference import GENERATED_PAGES
from bonobot.core.documentation.reference import format_code as code
from bonobot.core.documentation.reference import format_table as table

ROOT = Path(__file__).resolve().parents[2]


@cache
def pages() -> dict[str, str]:
    """Return every page by its address below `reference/`."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
    django.setup()
    from docs.making import rest

    generated = {
        f"{name.removeprefix('reference/')}.md": build(ROOT, ROOT)
        for name, build in GENERATED_PAGES.items()
    }
    generated["metrics.md"] = metrics()
    return generated | {f"rest/{name}.md": text for name, text in rest.pages().items()}


def metrics() -> str:
    """Return what Prometheus reads, and the alerts made of it."""
    from bonobot.core.telemetry.metrics import registry
    from bonobot.monitoring.metrics_endpoint import list_families

    counted = [
        (
            code(f"{one.name}{'_total' if one.type == 'counter' else ''}"),
            one.type,
            one.documentation,
        )
        for one in registry.collect()
        if one.name.startswith("bonobot_")
    ]
    read = [(code(one.name), "gauge, from the scheduler", one.text) for one in list_families()]
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text(encoding="utf-8"))
    alerts = (
        (
            f"[{one['alert']}](../runbooks.md#{one['alert'].lower()})",
            one["labels"]["severity"],
            one["annotations"]["summary"],
            code(" ".join(one["expr"].split())),
            one.get("for", ""),
        )
        for group in rules["groups"]
        for one in group["rules"]
    )
    return "\n".join(
        [
            "# Metrics and alerts\n",
            "How to collect and use them: [Operate](../operate.md#metrics-and-alerts).\n",
            table(("metric", "type", "description"), sorted({*counted, *read})),
            "## Alerts\n",
            table(("alert", "severity", "description", "expression", "for"), alerts),
        ]
    )
