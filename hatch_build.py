"""The build hook of hatchling: compile the message catalogs, which Git doesn't contain."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CATALOGS = Path("bonobot", "core", "i18n", "catalogs.py")


class CatalogBuildHook(BuildHookInterface[Any]):
    """Compiles each `.po` file before its package is collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the `.mo` files and add them to the wheel."""
        root = Path(self.root)
        # By its path: the package's dependencies aren't installed while it is built.
        spec = spec_from_file_location("catalogs", root / CATALOGS)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(root / CATALOGS)
        catalogs = module_from_spec(spec)
        spec.loader.exec_module(catalogs)
        catalogs.compile_catalogs(root / "bonobot" / "locale")
        build_data["artifacts"].append("/bonobot/locale/*/LC_MESSAGES/*.mo")
