"""Export and deletion of an organization.

An export folder has the configuration for `apply`, the audit log in a verifiable form, every row
as JSON Lines, and the workspaces. It never contains secrets.
"""

import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import serializers
from django.db import transaction
from django.db.models import Model, QuerySet

from agents.config_file.export_config import export_config, to_yaml
from agents.kill_switch import halt_organization
from agents.models import Agent, ModelEndpoint
from bonobot.accounts.models import Membership, Organization
from bonobot.accounts.principals import Principal
from bonobot.core.problems import Conflict, Forbidden
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.audit.export import export_pages
from bonobot.ledger.audit.prune_chain import delete_organization_rows
from bonobot.ledger.models import AuditRow
from bonobot.maintenance import backups
from mcp_servers.build_endpoint import get_sandbox_folder
from mcp_servers.models import Server
from mcp_servers.services import lock_server_rows

# Lookups of models without an `organization` column.
ORGANIZATION_LOOKUPS = {
    "agents.Step": "session__organization",
    "agents.Inbox": "session__organization",
}
CHUNK_SIZE = 500


@dataclass(frozen=True)
class OrganizationCounts:
    """Row counts of an organization."""

    organization: str
    rows: int
    audit_rows: int
    people: int


def count_organization_rows(organization: Organization) -> OrganizationCounts:
    """Count the rows that would be exported or deleted."""
    row_count = sum(table_rows.count() for _, table_rows in list_organization_tables(organization))
    audit_count = AuditRow.objects.for_organization(organization.pk).count()
    member_count = Membership.objects.filter(organization=organization).count()
    return OrganizationCounts(organization.slug, row_count, audit_count, member_count)


def list_organization_tables(
    organization: Organization,
) -> Iterator[tuple[type[Model], QuerySet[Any]]]:
    for model in apps.get_models():
        if model._meta.app_label == "ledger":
            continue  # the audit log is exported separately
        column = ORGANIZATION_LOOKUPS.get(model._meta.label)
        if column is None and any(f.name == "organization" for f in model._meta.local_fields):
            column = "organization"
        if column is not None:
            yield model, model._base_manager.filter(**{column: organization})


def export_organization(
    principal: Principal, organization: Organization, folder: Path
) -> OrganizationCounts:
    """Export everything to a new or empty folder, audited; raises `Conflict`, `Forbidden`."""
    _require_platform_admin(principal)
    with record_change(
        actor=principal.actor,
        action="organization_exported",
        **describe_row("organization", organization),
        governed=False,
    ):
        pass
    _write_export(principal, organization, folder)
    return count_organization_rows(organization)


def delete_organization(
    principal: Principal, organization: Organization, folder: Path | None
) -> OrganizationCounts:
    """Halt an organization, export it to a folder (unless it is None), and delete it.

    The deletion is the last entry of its audit log, which then only the folder has. User accounts
    stay: they may be members elsewhere. Raises `Conflict`, `Forbidden`.
    """
    _require_platform_admin(principal)
    if folder is not None:
        _require_empty_folder(folder)
    halt_organization(principal, "The organization is being deleted.")
    counts = count_organization_rows(organization)
    with record_change(
        actor=principal.actor,
        action="organization_deleted",
        **describe_row("organization", organization),
        details={"rows": counts.rows, "audit_rows": counts.audit_rows},
        governed=False,
    ):
        pass
    if folder is not None:
        _write_export(principal, organization, folder)
        backups.read_backup(folder)
    organization_id, folders_to_delete = (
        organization.pk,
        [*_list_workspace_folders(organization), get_sandbox_folder(organization.pk)],
    )
    with transaction.atomic():
        lock_server_rows(Server.objects.for_organization(organization.pk))
        # Foreign keys protect endpoints and servers while agents use them: delete the agents first.
        Agent.objects.for_organization(organization.pk).delete()
        ModelEndpoint.objects.for_organization(organization.pk).update(fallback=None)
        organization.delete()
        delete_organization_rows(organization_id)
    for path in folders_to_delete:
        shutil.rmtree(path, ignore_errors=True)
    return counts


def _write_export(principal: Principal, organization: Organization, folder: Path) -> None:
    _require_empty_folder(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    configuration = to_yaml(export_config(principal))
    (folder / "configuration.yaml").write_text(configuration, encoding="utf-8")
    with (folder / "audit.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(
            export_pages(AuditRow.objects.filter(organization_id=organization.pk), "jsonl")
        )
    with (folder / "people.jsonl").open("w", encoding="utf-8") as file:
        for member in Membership.objects.filter(organization=organization).select_related("user"):
            person = {"username": member.user.username, "email": member.user.email}
            file.write(f"{json.dumps(person | {'role': member.role})}\n")
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for _, rows in list_organization_tables(organization):
            serializers.serialize("jsonl", rows.order_by("pk").iterator(CHUNK_SIZE), stream=file)
    with tarfile.open(folder / "workspaces.tar.gz", "w:gz") as archive:
        for workspaces in _list_workspace_folders(organization):
            archive.add(workspaces, arcname=f"workspaces/{workspaces.name}")
    backups.write_manifest(folder)


def _list_workspace_folders(organization: Organization) -> list[Path]:
    """Return the existing workspace folders of its agents and servers."""
    root = Path(settings.BONOBOT_VAR) / "workspaces"
    names = (str(organization.pk), organization.slug)
    return [root / name for name in names if (root / name).is_dir()]


def _require_empty_folder(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(
            f"{str(folder)!r} isn't empty.",
            code="folder_not_empty",
            field="FOLDER",
            remedy="Specify a new folder.",
        )


def _require_platform_admin(principal: Principal) -> None:
    if not principal.platform_admin:
        raise Forbidden(
            "Only a platform administrator can export or delete an organization.",
            rule="platform_admin",
            remedy="Contact a platform administrator.",
        )
