"""The build hook of hatchling: the compiled message catalogs, and the documentation's sources."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CATALOGS = Path("bonobot", "core", "i18n", "catalogs.py")
# Where the product looks for its documentation: `bonobot/core/documentation/pages.py`.
DOCUMENTATION = "bonobot/documentation"
DOCUMENTATION_FILES = ("**/*.md", "images/**/*.svg", "images/**/*.webp")
ROOT_FILES = (".env.example", "CHANGELOG.md", "SECURITY.md", "mkdocs.yml")


class CatalogBuildHook(BuildHookInterface[Any]):
    """Compiles each `.po` file before its package is collected, and adds the documentation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the `.mo` files and add them and the documentation to the wheel."""
        root = Path(self.root)
        # By its path: the package's dependencies aren't installed while it is built.
        spec = spec_from_file_location("catalogs", root / CATALOGS)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(root / CATALOGS)
        catalogs = module_from_spec(spec)
        spec.loader.exec_module(catalogs)
        catalogs.compile_catalogs(root / "bonobot" / "locale")
        build_data["artifacts"].append("/bonobot/locale/*/LC_MESSAGES/*.mo")
        if self.target_name == "wheel" and version != "editable":
            build_data["force_include"].update(_map_documentation(root))


def _map_documentation(root: Path) -> dict[str, str]:
    """Return the paths of the documentation's files in the wheel by their paths here."""
    docs = root / "docs"
    files = {
        str(path): f"{DOCUMENTATION}/{path.relative_to(docs).as_posix()}"
        for pattern in DOCUMENTATION_FILES
        for path in docs.glob(pattern)
    }
    return files | {str(root / name): f"{DOCUMENTATION}/{name}" for name in ROOT_FILES}
