"""The product keeps the rules of the house."""

from collections.abc import Callable, Iterable

import pytest
from django.apps import apps

from tests.architecture import rules, sources


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_product_follows_the_rule(
    rule: Callable[[Iterable[sources.Source]], Iterable[sources.Violation]],
) -> None:
    broken = [str(violation) for violation in rule(sources.product())]
    assert not broken, "\n".join(broken)


def test_names_in_the_rules_exist() -> None:
    modules = {source.module for source in sources.product()}
    modules |= {name for source in modules for name in _packages(source)}
    named = {
        *rules.DECISIONS,
        *rules.PACKAGES,
        *rules.CALLERS,
        *rules.HTTP_USERS,
        rules.EGRESS,
        rules.POOL[0],
    }
    assert named <= modules, f"rename or remove {named - modules} in tests/architecture/rules.py"


def _packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


@pytest.mark.parametrize(
    "rule",
    [rules.banned_module_names, rules.long_modules, rules.sleeping_tests],
    ids=lambda rule: rule.__name__,
)
def test_the_tests_follow_the_rule(
    rule: Callable[[Iterable[sources.Source]], Iterable[sources.Violation]],
) -> None:
    broken = [str(violation) for violation in rule(sources.tests())]
    assert not broken, "\n".join(broken)


def test_relations_to_lower_layers_have_no_reverse_name() -> None:
    relations = [
        (model.__module__, f"{model.__name__}.{field.name}", target.__module__, hidden(field))
        for model in apps.get_models(include_auto_created=True)
        for field in model._meta.get_fields()
        if field.is_relation and field.concrete and isinstance(target := field.related_model, type)
    ]
    broken = rules.visible_downward_relations(relations)
    assert not broken, "\n".join(broken)


def hidden(field: object) -> bool:
    return bool(field.remote_field.hidden)  # type: ignore[attr-defined]  # only relations come here
