"""Extension points: upper packages register what lower ones use; a missing one is reported."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from bonobot.accounts.extension_points import agent_directory
from bonobot.core.extension_points import ExtensionList, ExtensionPoint, LazyFunction


def test_the_error_says_who_registers_it_when_nothing_is_registered() -> None:
    point: ExtensionPoint[object] = ExtensionPoint("agent directory", registered_by="agents")
    with pytest.raises(ImproperlyConfigured, match="No agent directory is registered: agents"):
        point.get()


def test_the_last_implementation_is_used_when_two_are_registered() -> None:
    point: ExtensionPoint[str] = ExtensionPoint("name", registered_by="agents")
    point.register("first")
    point.register("second")
    assert point.get() == "second"


def test_an_implementation_is_listed_once_when_it_is_registered_twice() -> None:
    functions: ExtensionList[LazyFunction] = ExtensionList()
    for path in ("json.dumps", "json.loads", "json.dumps"):
        functions.register(LazyFunction(path))
    assert list(functions) == [LazyFunction("json.dumps"), LazyFunction("json.loads")]


def test_a_function_is_imported_when_it_is_called() -> None:
    missing = LazyFunction("bonobot.nowhere.call")
    with pytest.raises(ImportError):
        missing()
    assert LazyFunction("json.dumps")({"a": 1}) == '{"a": 1}'


@pytest.mark.django_db
def test_the_agent_directory_is_registered_when_the_apps_are_ready() -> None:
    assert agent_directory.get().load_names([]) == {}
