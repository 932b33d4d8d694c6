"""What the rules read: a module's syntax tree, its imports and the names in its strings."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agents", "bonobot", "mcp_servers")
# A copy of the SDK's server, unchanged.
FOREIGN = Path("tests/servers/sdk_everything_server/server.py")

# Strings that Django, Celery and importlib resolve: "agents.Agent", "agents.tasks.run".
DOTTED = re.compile(r"(?:agents|bonobot|mcp_servers|tenancy|ledger|notices)(?:\.[A-Za-z_]\w*)+")
APP_LABELS = {
    "tenancy": "bonobot.accounts",
    "ledger": "bonobot.ledger",
    "notices": "bonobot.notifications",
}


@dataclass(frozen=True)
class Mention:
    """Something that a module imports or names in a string, and on which line."""

    target: str
    line: int


@dataclass(frozen=True)
class Violation:
    """A broken rule: where, and what to do instead."""

    module: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Source:
    """One module by its dotted name."""

    module: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse(self.text)
        except SystemError:
            # CPython 3.11 counts depth for all threads together, and a traceback that another
            # thread writes down is parsed, too.
            return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Return all nodes of the tree: several rules look at each."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> tuple[Mention, ...]:
        """Return every imported name, `from a import b` as `a.b`, wherever the statement stands."""
        return tuple(self._imports())

    @cached_property
    def strings(self) -> tuple[Mention, ...]:
        """Return the dotted names in string literals, and `get_model("agents", "Agent")`."""
        return tuple(self._strings())

    def inside(self, *packages: str) -> bool:
        """Say whether the module is one of the packages or below it."""
        return is_within(self.module, *packages)

    def calls(self, *, without_arguments: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
        """Yield the dotted name of what is called, with import aliases resolved, and the line.

        Calls with exactly one of the given argument texts are left out.
        """
        names = self._bound_names()
        for node in self.nodes:
            if isinstance(node, ast.Call) and (name := get_dotted_name(node.func)):
                if without_arguments and _text(node.args) in without_arguments:
                    continue
                head, _, rest = name.partition(".")
                yield ".".join(filter(None, (names.get(head, head), rest))), node.lineno

    def _imports(self) -> Iterator[Mention]:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Mention(alias.name, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                for alias in node.names:
                    yield Mention(f"{base}.{alias.name}", node.lineno)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.module.split(".")
        parts = parts[: len(parts) - node.level + int(self.is_package)]
        return ".".join(filter(None, (*parts, node.module)))

    def _strings(self) -> Iterator[Mention]:
        for node in self.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if DOTTED.fullmatch(node.value):
                    yield Mention(_expand(node.value), node.lineno)
            elif isinstance(node, ast.Call) and (get_dotted_name(node.func) or "").endswith(
                "get_model"
            ):
                values = [a.value for a in node.args if isinstance(a, ast.Constant)]
                if len(values) == 2 and all(isinstance(value, str) for value in values):
                    yield Mention(_expand(".".join(map(str, values))), node.lineno)

    def _bound_names(self) -> dict[str, str]:
        bound: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                bound |= {a.asname: a.name for a in node.names if a.asname}
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                bound |= {a.asname or a.name: f"{base}.{a.name}" for a in node.names}
        return bound


def is_within(module: str, *packages: str) -> bool:
    """Say whether a dotted name is one of the packages or below it."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def get_dotted_name(node: ast.expr) -> str | None:
    """Return `a.b.c` for a chain of attributes, None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = get_dotted_name(node.value)
        return f"{base}.{node.attr}" if base else f"?.{node.attr}"
    return None


def _text(arguments: Iterable[ast.expr]) -> str:
    return ", ".join(map(ast.unparse, arguments))


@cache
def product() -> tuple[Source, ...]:
    """Return the modules of the product, without migrations (Django writes those)."""
    return tuple(source for package in PACKAGES for source in _read(package))


@cache
def tests() -> tuple[Source, ...]:
    """Return the modules of the tests."""
    return tuple(_read("tests"))


def _read(package: str) -> Iterator[Source]:
    for path in sorted((ROOT / package).rglob("*.py")):
        relative = path.relative_to(ROOT)
        if "migrations" in relative.parts or "node_modules" in relative.parts:
            continue
        if relative == FOREIGN:
            continue
        is_package = path.name == "__init__.py"
        parts = relative.parent.parts if is_package else relative.with_suffix("").parts
        yield Source(".".join(parts), path.read_text(encoding="utf-8"), is_package)


def _expand(name: str) -> str:
    label, _, rest = name.partition(".")
    package = APP_LABELS.get(label, label)
    # A model by its app's label, such as "agents.Agent".
    return (
        f"{package}.models.{rest}"
        if rest[:1].isupper() and "." not in rest
        else f"{package}.{rest}"
    )
