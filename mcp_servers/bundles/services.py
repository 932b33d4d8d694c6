"""Store and unpack bundles, and plan the servers that run them."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from bonobot.accounts.principals import Principal
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, InvalidInput
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.bundles.archive import BundleArchive, BundleFolder
from mcp_servers.bundles.manifest import (
    FOLDER_MARK,
    MAX_MANIFEST_BYTES,
    BundleManifest,
    build_manifest_error,
    read_manifest,
)
from mcp_servers.models import Server, ServerBundle
from mcp_servers.server_names import slugify

MANIFEST = "manifest.json"
# In place of the folder of a bundle that isn't stored: it can't exist.
MISSING_FOLDER = "/dev/null/bundle"
# An uploaded bundle that no server uses is deleted with the next upload after this time.
UNUSED_AGE = timedelta(days=1)


def store_bundle(principal: Principal, data: bytes) -> str:
    """Check and store a bundle, and return the configuration to import. Runs nothing of it.

    Only platform administrators may upload one, as only they may choose what servers run. Raises
    `Forbidden`, and `InvalidInput` that names the field of the manifest.
    """
    if not principal.platform_admin:
        raise Forbidden(
            "Only a platform administrator can import a bundle.",
            code="platform_admin_only",
            field="bundle",
            rule="stdio",
            remedy="Add the server from a preset, or ask a platform administrator.",
        )
    archive = BundleArchive(data)
    manifest = _read_manifest(archive)
    tree_digest = archive.hash_files()
    with transaction.atomic():
        _delete_unused_bundles(principal.organization_id)
        bundle, _created = ServerBundle.objects.get_or_create(
            organization_id=principal.organization_id,
            digest=archive.digest,
            defaults={
                "tree_digest": tree_digest,
                "name": manifest.name,
                "version": manifest.version[:100],
                "content": data,
            },
        )
        bundle.save(update_fields=["updated_at"])
    name = slugify(manifest.name) or "server"
    return json.dumps({"mcpServers": {name: {"bundle": archive.digest}}}, indent=2)


def find_bundle(organization_id: UUID, digest: str) -> ServerBundle:
    """Return a stored bundle; raises `InvalidInput` (`unknown_bundle`)."""
    bundle = _find_stored_bundle(organization_id, digest)
    if bundle is None:
        raise InvalidInput(
            format_message(
                "The bundle `{digest}` isn't stored in this organization.",
                digest=make_visible(digest, 64),
            ),
            code="unknown_bundle",
            field="endpoint_config.bundle",
            remedy="Upload the `.mcpb` file again.",
        )
    return bundle


def load_manifest(bundle: ServerBundle) -> BundleManifest:
    """Return the manifest of a stored bundle."""
    return _read_manifest(BundleArchive(bytes(bundle.content)))


def prepare_bundle_folder(organization_id: UUID, digest: str) -> BundleFolder | None:
    """Return the unpacked folder of a bundle on this host; None if the bundle isn't stored.

    A folder that exists isn't read here: `BundleFolder.is_unchanged` compares it at each start.
    """
    bundle = _find_stored_bundle(organization_id, digest)
    if bundle is None:
        return None
    folder = get_bundle_folder(organization_id, digest)
    if not folder.is_dir():
        BundleArchive(bytes(bundle.content)).unpack(folder)
    return BundleFolder(str(folder), bundle.tree_digest)


def get_bundle_folder(organization_id: UUID, digest: str) -> Path:
    """Return where a bundle is unpacked; `digest` is one of a stored bundle."""
    root = Path(settings.BONOBOT_VAR).absolute() / "sandboxes" / str(organization_id)
    return root / "bundles" / digest


def fill_bundle_folder(
    config: Mapping[str, Any], env: Mapping[str, str], folder: BundleFolder | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the configuration and the environment with the folder in place of its mark."""
    path = folder.path if folder else MISSING_FOLDER
    filled_config = {
        **config,
        "command": str(config.get("command", "")).replace(FOLDER_MARK, path),
        "args": [str(arg).replace(FOLDER_MARK, path) for arg in config.get("args", ())],
    }
    return filled_config, {name: value.replace(FOLDER_MARK, path) for name, value in env.items()}


def _find_stored_bundle(organization_id: UUID, digest: str) -> ServerBundle | None:
    bundles = ServerBundle.objects.for_organization(organization_id).defer("content")
    return bundles.filter(digest=digest).first()


def _read_manifest(archive: BundleArchive) -> BundleManifest:
    content = archive.read_file(MANIFEST, MAX_MANIFEST_BYTES)
    if content is None:
        raise build_manifest_error(MANIFEST, format_message("The file is missing."))
    manifest = read_manifest(content, sys.platform)
    entry_file = next((file for file in archive.files if file.path == manifest.entry_point), None)
    if entry_file is None:
        raise build_manifest_error(
            "server.entry_point", format_message("The bundle has no such file.")
        )
    return replace(manifest, entry_point=entry_file.path)


def _delete_unused_bundles(organization_id: UUID) -> None:
    configs = Server.objects.for_organization(organization_id).filter(
        endpoint_config__has_key="bundle"
    )
    used_digests = configs.values_list("endpoint_config__bundle", flat=True)
    old = ServerBundle.objects.for_organization(organization_id).filter(
        updated_at__lt=timezone.now() - UNUSED_AGE
    )
    old.exclude(digest__in=list(used_digests)).delete()
