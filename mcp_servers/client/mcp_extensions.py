"""MCP extensions that are relayed between clients and servers, in both protocol eras.

A capability `extensions` maps names to settings. Only allowed extensions (`BONOBOT_EXTENSIONS`) are
relayed; the tasks extension is Bonobot's own and exists only in the modern era. MCP Apps
(SEP-1865) name an HTML page for a tool's results: a resource with a URI that begins with `ui://`.
Skills (SEP-2640) are declared with the digest of each of their files, which are resources.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.conf import settings

from bonobot.core.problems import InvalidInput
from bonobot.core.text.canonical_json import is_same_value
from bonobot.core.text.yaml_reader import read_yaml

UI_EXTENSION = "io.modelcontextprotocol/ui"
APP_MIME_TYPE = "text/html;profile=mcp-app"
APP_SCHEME = "ui://"
SKILLS_EXTENSION = "io.modelcontextprotocol/skills"
SKILL_SCHEME, SKILL_FILE = "skill://", "SKILL.md"
# The limits of the extension for one skill.
MAX_SKILL_FILES, MAX_SKILL_BYTES = 512, 16 * 1024 * 1024
_FILE_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FRONTMATTER = re.compile(r"\ufeff?---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
# Names of the field with the page's URI in `_meta`, before and after it got an object of its own.
UI_KEY, UI_URI_KEY = "ui", "resourceUri"
FLAT_URI_KEYS = ("ui/resourceUri", "openai/outputTemplate")
# What clients declare that render apps; servers may offer apps only to them.
_CLIENT_SETTINGS: Mapping[str, Mapping[str, Any]] = {UI_EXTENSION: {"mimeTypes": [APP_MIME_TYPE]}}
# Characters of the settings of one extension.
MAX_SETTINGS = 4_096
_SKILL_TEXTS = ("name", "description")


def build_client_extensions() -> dict[str, Any]:
    """Return the relayed extensions as a client that supports all of them declares them."""
    return {name: dict(_CLIENT_SETTINGS.get(name, {})) for name in settings.BONOBOT_EXTENSIONS}


def select_relayed_extensions(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the relayed extensions of capabilities that a client or a server declared."""
    declared = capabilities.get("extensions")
    if not isinstance(declared, Mapping):
        return {}
    return {
        name: declared[name]
        for name in settings.BONOBOT_EXTENSIONS
        if isinstance(declared.get(name), Mapping)
        and len(json.dumps(declared[name])) <= MAX_SETTINGS
    }


def merge_server_extensions(declared: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the relayed extensions that any of several servers declares."""
    merged: dict[str, Any] = {}
    for capabilities in declared:
        for name, value in select_relayed_extensions(capabilities).items():
            merged[name] = {**merged.get(name, {}), **value}
    return merged


def is_for_models(declaration: Mapping[str, Any]) -> bool:
    """Return whether a model may be shown a tool; some are only for the page of an app (SEP-1865).

    The page calls those through its host, so gateway clients list them.
    """
    meta = declaration.get("_meta")
    page = meta.get(UI_KEY) if isinstance(meta, Mapping) else None
    visibility = page.get("visibility") if isinstance(page, Mapping) else None
    return not isinstance(visibility, list) or "model" in visibility


def list_app_pages(declaration: Mapping[str, Any]) -> Iterator[str]:
    """Yield the URIs of a tool's app pages."""
    meta = declaration.get("_meta")
    if not isinstance(meta, Mapping):
        return
    page = meta.get(UI_KEY)
    uris = [page.get(UI_URI_KEY)] if isinstance(page, Mapping) else []
    uris += [meta.get(name) for name in FLAT_URI_KEYS]
    yield from (uri for uri in uris if isinstance(uri, str) and uri.startswith(APP_SCHEME))


def validate_skill(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a declared skill can't be used."""
    uri, files = str(entry.get("uri")), entry.get("resources")
    frontmatter = entry.get("frontmatter")
    texts = frontmatter if isinstance(frontmatter, Mapping) else {}
    if not all(isinstance(texts.get(name), str) and texts[name] for name in _SKILL_TEXTS):
        yield "`frontmatter` has no name or no description."
    elif not uri.endswith(f"/{texts['name']}/{SKILL_FILE}"):
        yield f"Its URI does not end with its name and `{SKILL_FILE}`."
    elif files == "dynamic":
        yield "Its files have no digests, so their content can't be approved."
    elif not isinstance(files, list) or not all(map(_is_skill_file, files)):
        yield "`resources` is not a list of files with their digests and sizes."
    else:
        uris = [file["uri"] for file in files]
        folder = uri.removesuffix(SKILL_FILE)
        if uri not in uris or len({*uris}) < len(uris):
            yield f"`resources` does not list each file once, with `{SKILL_FILE}`."
        if not all(name.startswith(folder) and ".." not in name.split("/") for name in uris):
            yield "`resources` has files outside of the skill's directory."
        if len(files) > MAX_SKILL_FILES or sum(file["size"] for file in files) > MAX_SKILL_BYTES:
            yield f"It has more than {MAX_SKILL_FILES} files or {MAX_SKILL_BYTES // 2**20} MiB."


def _is_skill_file(file: Any) -> bool:
    if not isinstance(file, Mapping) or not isinstance(file.get("uri"), str):
        return False
    digest, size = file.get("digest"), file.get("size")
    has_digest = isinstance(digest, str) and _FILE_DIGEST.fullmatch(digest) is not None
    return has_digest and isinstance(size, int) and not isinstance(size, bool) and size >= 0


def is_skill_content(entry: Mapping[str, Any], uri: str, result: Mapping[str, Any]) -> bool:
    """Return whether the result of a read is the file that a skill's entry describes."""
    file = next((file for file in entry["resources"] if file["uri"] == uri), None)
    contents = result.get("contents")
    if file is None or not isinstance(contents, list) or len(contents) != 1:
        return False
    content = contents[0] if isinstance(contents[0], Mapping) else {}
    try:
        raw = base64.b64decode(str(content.get("blob") or ""), validate=True)
        raw = str(content["text"]).encode() if "text" in content else raw
    except ValueError:
        return False
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    is_same = content.get("uri") == uri and len(raw) == file["size"] and digest == file["digest"]
    return is_same and (
        uri != entry["uri"]
        or is_same_value(parse_frontmatter(str(content.get("text"))), entry["frontmatter"])
    )


def parse_frontmatter(text: str) -> Any:
    """Return the YAML frontmatter of a `SKILL.md`; None if it has none that can be read."""
    match = _FRONTMATTER.match(text)
    try:
        return read_yaml(match[1]).root.to_python() if match else None
    except InvalidInput:
        return None
