"""MCP bundles for tests: written by hand, or packed with the official tool."""

import io
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

NPM = Path(__file__).parent / "npm" / "node_modules"
CLOCK = Path(__file__).parent / "servers" / "clock.py"


def build_manifest(**fields: Any) -> dict[str, Any]:
    """Return the manifest of a Python server with one file."""
    return {
        "manifest_version": "0.3",
        "name": "clock",
        "version": "1.0.0",
        "description": "Tells the time.",
        "author": {"name": "Acme"},
        "server": {
            "type": "python",
            "entry_point": "server/clock.py",
            "mcp_config": {"command": sys.executable, "args": ["${__dirname}/server/clock.py"]},
        },
        **fields,
    }


def build_bundle(manifest: Any = None, files: dict[str, bytes] | None = None) -> bytes:
    """Return an archive with the manifest and the clock."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        text = manifest if isinstance(manifest, str) else json.dumps(manifest or build_manifest())
        archive.writestr("manifest.json", text)
        archive.writestr("server/clock.py", CLOCK.read_bytes())
        for name, content in (files or {}).items():
            archive.writestr(name, content)
    return buffer.getvalue()


def pack_npm_bundle(folder: Path, **fields: Any) -> bytes:
    """Pack a server from npm, which needs no other package, with `mcpb pack`."""
    source = folder / "source"
    shutil.copytree(
        NPM / "@modelcontextprotocol" / "server-basic-vanillajs" / "dist", source / "dist"
    )
    (source / "package.json").write_text(json.dumps({"type": "module"}))
    manifest = build_manifest(
        name="basic-app",
        server={
            "type": "node",
            "entry_point": "dist/index.js",
            "mcp_config": {"command": "node", "args": ["${__dirname}/dist/index.js", "--stdio"]},
        },
    )
    (source / "manifest.json").write_text(json.dumps(manifest | fields))
    target = folder / "basic-app.mcpb"
    command = ["node", str(NPM / ".bin" / "mcpb"), "pack", str(source), str(target)]
    packed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert packed.returncode == 0, packed.stdout + packed.stderr
    return target.read_bytes()
