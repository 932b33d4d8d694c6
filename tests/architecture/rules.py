"""The rules of the house, each a function from modules to violations."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations

from tests.architecture.sources import Source, Violation, get_dotted_name, is_within
from tests.problem_texts import find_concatenations

# From the bottom up, modules of one line beside each other; the longest prefix decides. Whatever
# else is in `bonobot` is wiring, on top.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("bonobot.core",),
    ("bonobot.ledger",),
    (
        *("bonobot.accounts", "bonobot.ledger.admin", "bonobot.ledger.api", "bonobot.ledger.cli"),
        "bonobot.ledger.usage.report",  # it is of what a principal may see
    ),
    (
        *("bonobot.notifications", "bonobot.oauth_server", "bonobot.jobs", "bonobot.monitoring"),
        *("bonobot.maintenance", "bonobot.processes"),
    ),
    ("mcp_servers",),
    ("agents.models", "agents.llm"),
    (
        *("agents.attachments", "agents.images", "agents.assignments"),
        *("agents.wakeups", "agents.saved_filters"),
        "agents.call_activity",
    ),
    ("agents.budgets",),
    (
        *("agents.approvals", "agents.elicitations", "agents.policies", "agents.flow_labels"),
        "agents.skills",
    ),
    ("agents.notes",),
    ("agents.builtin_tools",),
    ("agents.calls",),
    ("agents.model_endpoints",),
    ("agents.sessions",),
    ("agents.workflows", "agents.evaluation"),
    ("agents.kill_switch", "agents.services", "agents.server_imports"),
    ("agents.agent_tools",),
    ("agents.access_requests",),
    (
        *("agents.gateway", "agents.config_file", "agents.admin", "agents.api"),
        *("agents.cli", "agents.organization_offboarding", "agents.tasks", "agents.apps"),
        "agents",
    ),
    ("bonobot",),
)
PACKAGES = tuple(name for names in LAYERS for name in names)
TOP = len(LAYERS) - 1
EVERYWHERE = frozenset({"bonobot.__version__", "bonobot.models.Lease"}) | {
    # Labels that encrypted values are bound to, which look like modules.
    *("agents.exchange.responses", "agents.promise.answer", "agents.promise.request"),
    "agents.mcp_session.message",
    "agents.question.content",
}

DECISIONS = (
    "agents.budgets.limits",
    "agents.calls.completions",
    "agents.calls.incomplete_results",
    "agents.calls.result_text",
    "bonobot.accounts.admin_base.svg_charts",
    "agents.elicitations.requested_schemas",
    "agents.policies.compare_decisions",
    "agents.policies.decision_texts",
    "agents.policies.decisions",
    "agents.policies.rules",
    "agents.sessions.timeline_bars",
    "agents.agent_tools.settings",
    "bonobot.core.rate_limiter",
    "bonobot.core.http.ip_addresses",
    "bonobot.core.text.canonical_json",
    "bonobot.ledger.audit.entry_encoding",
    "bonobot.ledger.audit.hash_chain",
    "bonobot.ledger.budgets",
    "bonobot.ledger.types",
    "bonobot.ledger.usage.aggregation",
    "bonobot.ledger.writer.batch_plan",
    "bonobot.ledger.writer.repeated_refusals",
    "bonobot.notifications.events",
    "mcp_servers.health.uptime",
    "mcp_servers.openapi.compose_document",
    "mcp_servers.openapi.declared_operations",
    "mcp_servers.openapi.document",
    "mcp_servers.openapi.operations",
    "mcp_servers.openapi.document_outline",
    "mcp_servers.openapi.requests",
    "mcp_servers.openapi.schema_conversion",
    *(
        f"mcp_servers.scanning.{name}"
        for name in (
            *("active_content", "chat_tokens", "classifier", "definition_text", "definitions"),
            *("deobfuscation", "hidden_text", "parameter_names", "prompt_injection", "signals"),
            "tool_results",
        )
    ),
    *(
        f"mcp_servers.schemas.{name}"
        for name in ("classify_schema", "dialects", "error_messages", "validate_arguments")
    ),
    "mcp_servers.server_names",
    "mcp_servers.tool_names",
)
EFFECTS = (
    *("asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "queue"),
    *("random", "secrets", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess"),
    *("sys", "tempfile", "threading", "time", "urllib.request", "http.client"),
    *("aiohttp", "anyio", "celery", "django", "httpcore", "httpcore2", "httpx", "httpx2"),
    *("mcp", "psycopg", "pydantic_ai", "redis", "requests", "rest_framework"),
)
EFFECTFUL_CALLS = frozenset(
    {"open", "print", "input", "datetime.datetime.now", "datetime.date.today", "uuid.uuid4"}
)

POOL = ("mcp_servers.client.pool",)
CALLERS = (
    *("agents.calls", "mcp_servers.client", "mcp_servers.discovery", "mcp_servers.health"),
    "mcp_servers.find_server_at_url",  # it lists what a server declares before it is added
    "mcp_servers.subscriptions",  # it listens, and calls nothing
    "mcp_servers.close_connections",  # it closes, and calls nothing
    "mcp_servers.apps",  # it registers what closes
)

HTTP = (
    *("aiohttp", "http.client", "httpcore", "httpcore2", "httpx", "httpx2", "pycurl"),
    *("requests", "urllib.request", "urllib3"),
)
EGRESS = "bonobot.core.http.egress"
ROW_LOCKS = "bonobot.core.db.transactions"
# These take a client or a socket that egress made: they may name its types, but not make one.
SHARED_VALUES = "bonobot.core.process_cache"
HTTP_USERS = (
    *("mcp_servers.client", "mcp_servers.oauth_client", "mcp_servers.presets.check_packages"),
    "mcp_servers.import_export.registry_client",
    *("mcp_servers.openapi.discovery", "agents.llm", "agents.builtin_tools.toolsets.fetch"),
    *("bonobot.core.http.network_backend", "bonobot.core.http.well_known"),
    *("bonobot.core.http.persistent_client", "bonobot.core.http.outbound_proxy"),
    *("bonobot.notifications.webhooks", "bonobot.accounts.external_issuers.jwks"),
    *("bonobot.oauth_server.client_metadata_documents", "bonobot.accounts.sso.oidc_client"),
)
MAKERS = frozenset(
    {"AsyncClient", "Client", "AsyncHTTPTransport", "HTTPTransport", "AsyncConnectionPool"}
    | {"ConnectionPool", "ClientSession", "Session", "urlopen", "HTTPConnection", "HTTPSConnection"}
    | {"get", "post", "put", "patch", "delete", "head", "options", "request", "stream"}
)

BANNED_NAMES = frozenset({"common", "constants", "helpers", "misc", "util", "utils"})
BANNED_CALLS = {
    "asgiref.sync.async_to_sync": "use `get_runtime().call`: one loop per process",
    "asyncio.run": "use `get_runtime().call`: one loop per process",
}
SLEEPS = frozenset({"anyio.sleep", "asyncio.sleep", "time.sleep"})
LONGEST_MODULE = 700
LONGEST_FUNCTION = 50
# Gerunds that are the standard term of MCP, Python or the trade.
STANDARD_GERUNDS = frozenset(
    {"logging", "masking", "monitoring", "pricing", "sampling", "scanning", "tracing"}
)
# What says only that something happened, or to something.
BARE_NAMES = frozenset(
    {"asked", "found", "given", "gone", "held", "it", "kept", "left", "lost", "made", "meant"}
    | {"named", "one", "passed", "put", "said", "seen", "sent", "shown", "taken", "told", "written"}
)
# `feed` is a verb, `put` HTTP's, `__missing__` Python's, `sampling` MCP's name of a request.
VERBS_OR_TERMS = frozenset({"feed", "missing", "put", "sampling"})
NOUN_DECORATORS = frozenset({"property", "cached_property", "display", "setter"})


def upward_arrows(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find imports and names in strings that point to a layer above."""
    for source in sources:
        own = layer(source.module)
        # `bonobot.sqlite3` is a file: a name in wiring has a module and an attribute.
        strings = (
            mention
            for mention in source.strings
            if (layer(mention.target) < TOP or mention.target.count(".") > 1)
            and ".tasks." not in mention.target  # a message names the task that it triggers
        )
        for mention in (*source.imports, *strings):
            if mention.target in EVERYWHERE or not is_within(mention.target, *PACKAGES):
                continue
            if layer(mention.target) > own:
                yield Violation(
                    source.module,
                    mention.line,
                    f"names `{mention.target}`, which is above it: imports run one way, "
                    + " → ".join(", ".join(names) for names in reversed(LAYERS)),
                )


def visible_downward_relations(relations: Iterable[tuple[str, str, str, bool]]) -> list[str]:
    """Find relations (model's module, field, target's module, hidden) that show from below."""
    return [
        f"{owner}.{field}: a relation to `{target}`, which is below it, needs related_name='+'"
        for owner, field, target, hidden in relations
        if is_within(owner, *PACKAGES)
        and is_within(target, *PACKAGES)
        and layer(target) < layer(owner)
        and not hidden
    ]


def impure_decisions(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find decision modules that import Django or do I/O, themselves or through our own modules."""
    modules = {source.module: source for source in sources}
    for source in modules.values():
        if source.inside(*DECISIONS):
            yield from _effects(source, modules, seen=set())


def second_unfold_importers(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find importers of `unfold` beside the one module that gives the admin its look."""
    yield from _imports_outside(
        sources,
        ("unfold",),
        ("bonobot.core.admin.theme",),
        "take it from `bonobot.core.admin.theme`",
    )


def second_upstream_callers(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find modules beside the few that may do so that reach for upstream connections."""
    yield from _imports_outside(
        sources, POOL, CALLERS, "calls go through the door: `agents.calls.pipeline.make_call`"
    )
    yield from _imports_outside(
        sources,
        ("mcp.client",),
        ("mcp_servers.client",),
        "only `mcp_servers.client` speaks to upstreams",
    )


def racing_caches(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find shared values that several threads would compute at once on first use."""
    remedy = f"`{SHARED_VALUES}.compute_once` computes a shared value once"
    yield from _imports_outside(sources, ("functools.cache",), (), remedy)


def second_http_makers(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find HTTP clients made elsewhere than in `bonobot.core.http.egress`."""
    sources = tuple(sources)
    remedy = f"HTTP clients are made by `{EGRESS}`"
    yield from _imports_outside(sources, HTTP, (EGRESS, *HTTP_USERS), remedy)
    yield from _imports_outside(
        sources, ("pydantic_ai",), ("agents.llm",), "models are reached through `agents.llm`"
    )
    for source in sources:
        if not source.inside(*HTTP_USERS):
            continue
        for name, line in source.calls():
            if is_within(name, *HTTP) and name.rpartition(".")[2] in MAKERS:
                yield Violation(source.module, line, f"calls `{name}`: {remedy}")


def banned_module_names(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find modules that are named for what they contain instead of what they are about."""
    for source in sources:
        if banned := BANNED_NAMES.intersection(source.module.split(".")):
            yield Violation(
                source.module, 1, f"`{min(banned)}` says nothing: name the domain's noun or verb"
            )


def participle_module_names(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find modules that are named by a gerund or a participle alone."""
    for source in sources:
        stem = source.module.rpartition(".")[2].removeprefix("test_")
        if re.fullmatch(r"[a-z]+(ing|ed)", stem) and stem not in STANDARD_GERUNDS:
            yield Violation(
                source.module, 1, f"`{stem}`: name the noun, or the verb with its object"
            )


def similar_module_names(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find modules of one package whose names differ by one letter at most."""
    packages: dict[str, list[str]] = {}
    for source in sources:
        package, _, stem = source.module.rpartition(".")
        packages.setdefault(package, []).append(stem)
    for package, stems in packages.items():
        for first, second in combinations(sorted(stems), 2):
            if (
                first in (f"{second}s", second[:-1])
                or second == f"{first}s"
                or _swap(first, second)
            ):
                yield Violation(
                    f"{package}.{second}", 1, f"differs from `{first}` by one letter: rename it"
                )


def _swap(first: str, second: str) -> bool:
    same_length = len(first) == len(second)
    return same_length and sum(a != b for a, b in zip(first, second, strict=True)) == 1


def duplicate_class_names(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find classes of the same name in two modules; Django's `Command` is in each command's."""
    owners: dict[str, str] = {}
    for source in sources:
        for node in source.tree.body:
            if not isinstance(node, ast.ClassDef) or node.name == "Command":
                continue
            if (owner := owners.setdefault(node.name, source.module)) != source.module:
                yield Violation(
                    source.module,
                    node.lineno,
                    f"`{node.name}` is a class of `{owner}`, too: rename it",
                )


def bare_function_names(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find functions and methods that are named by a participle, gerund or pronoun alone.

    Properties and the columns of a changelist are nouns and adjectives, as are the methods of
    querysets (`enabled()`).
    """
    for source in sources:
        if ".templatetags." in source.module:  # filters are read in templates, after a value
            continue
        adjectives = {
            id(method)
            for node in ast.walk(source.tree)
            if isinstance(node, ast.ClassDef) and node.name.endswith("QuerySet")
            for method in node.body
        }
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if id(node) in adjectives or NOUN_DECORATORS.intersection(_decorators(node)):
                continue
            name = node.name.strip("_")
            bare = name in BARE_NAMES or re.fullmatch(r"[a-z]{2,}(ed|ing)", name)
            if bare and name not in VERBS_OR_TERMS:
                yield Violation(
                    source.module, node.lineno, f"`{node.name}`: name the verb and its object"
                )


def banned_calls(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find calls that break the one loop, or that SQLite ignores."""
    for source in sources:
        if source.inside("bonobot.core.runtime"):
            continue
        for name, line in source.calls():
            if remedy := BANNED_CALLS.get(name):
                yield Violation(source.module, line, f"calls `{name}`: {remedy}")
            elif name.endswith(".select_for_update") and not source.inside(ROW_LOCKS):
                yield Violation(
                    source.module,
                    line,
                    "`select_for_update` locks nothing on SQLite: claim by a conditional UPDATE; "
                    f"`{ROW_LOCKS}` says in which order writers wait",
                )


def shallow_json_parsers(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find code that expects invalid JSON, but not JSON nested so deeply that Python gives up."""
    for source in sources:
        if "json.loads(" not in source.text:
            continue
        for node in source.nodes:
            if isinstance(node, ast.Try):
                expected = [handler.type for handler in node.handlers if handler.type]
            elif isinstance(node, ast.With):
                expected = [item.context_expr for item in node.items]
            else:
                continue
            names = {
                get_dotted_name(part) for part in _walk_all(expected) if isinstance(part, ast.Name)
            }
            if "ValueError" not in names or "RecursionError" in names:
                continue
            if any(
                isinstance(part, ast.Call) and get_dotted_name(part.func) == "json.loads"
                for part in _walk_all(node.body)
            ):
                text = "expects `ValueError` of `json.loads`: `RecursionError`, too"
                yield Violation(source.module, node.lineno, text)


def _walk_all(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        yield from ast.walk(node)


def sleeping_tests(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find tests that wait for a time instead of an event; fakes may be slow, `sleep(0)` yields."""
    for source in sources:
        if not source.module.rpartition(".")[2].startswith("test_") or "sleep" not in source.text:
            continue
        for name, line in source.calls(without_arguments=("0",)):
            if name in SLEEPS:
                yield Violation(
                    source.module, line, f"calls `{name}`: use `eventually` (tests/wait.py)"
                )


def long_modules(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find modules over the limit of lines."""
    for source in sources:
        lines = len(source.text.splitlines())
        if lines > LONGEST_MODULE:
            yield Violation(
                source.module, lines, f"{lines} lines; at most {LONGEST_MODULE}: split it"
            )


def long_functions(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find functions over the limit of lines, the docstring not counted."""
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = _length(node)
                if lines > LONGEST_FUNCTION:
                    yield Violation(
                        source.module,
                        node.lineno,
                        f"`{node.name}` has {lines} lines; at most {LONGEST_FUNCTION}: split it",
                    )


def untranslatable_words(sources: Iterable[Source]) -> Iterator[Violation]:
    """Find texts of problems that are neither constants nor built by `format_message`."""
    for source, node in find_concatenations(tuple(sources)):
        yield Violation(
            source.module,
            node.lineno,
            f"builds {ast.unparse(node)[:80]}: use `format_message` and named values",
        )


RULES: tuple[Callable[[Iterable[Source]], Iterable[Violation]], ...] = (
    upward_arrows,
    impure_decisions,
    second_unfold_importers,
    second_upstream_callers,
    racing_caches,
    second_http_makers,
    banned_module_names,
    participle_module_names,
    similar_module_names,
    duplicate_class_names,
    bare_function_names,
    banned_calls,
    shallow_json_parsers,
    long_modules,
    long_functions,
    untranslatable_words,
)


def layer(module: str) -> int:
    """Return the position of a module's layer, 0 at the bottom."""
    return max(
        (len(name), index)
        for index, names in enumerate(LAYERS)
        for name in names
        if is_within(module, name)
    )[1]


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        yield call.attr if isinstance(call, ast.Attribute) else ast.unparse(call)


def _imports_outside(
    sources: Iterable[Source], targets: tuple[str, ...], allowed: tuple[str, ...], remedy: str
) -> Iterator[Violation]:
    for source in sources:
        if source.inside(*allowed):
            continue
        for mention in source.imports:
            if is_within(mention.target, *targets):
                yield Violation(
                    source.module, mention.line, f"imports `{mention.target}`: {remedy}"
                )


def _effects(source: Source, modules: Mapping[str, Source], seen: set[str]) -> Iterator[Violation]:
    seen.add(source.module)
    for mention in source.imports:
        if is_within(mention.target, *EFFECTS):
            yield Violation(
                source.module,
                mention.line,
                f"decides, so it can't import `{mention.target}`: pass values in",
            )
        own = _own_module(mention.target, modules)
        is_pure = own is not None and own.inside(*DECISIONS, SHARED_VALUES)  # a lock has no effect
        if own is not None and own.module not in seen and not is_pure:
            yield from _effects(own, modules, seen)
    for name, line in source.calls():
        if name in EFFECTFUL_CALLS:
            yield Violation(source.module, line, f"decides, so it can't call `{name}`: pass it in")


def _own_module(target: str, modules: Mapping[str, Source]) -> Source | None:
    # `from a.b import c`: c is a module, or a name in module a.b.
    return modules.get(target) or modules.get(target.rpartition(".")[0])


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body
    end = node.end_lineno or node.lineno
    if ast.get_docstring(node) is None:
        return end - node.lineno + 1
    doc = body[0]
    return end - node.lineno + 1 - ((doc.end_lineno or doc.lineno) - doc.lineno + 1)
