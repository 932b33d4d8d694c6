"""Settings from environment variables or files: typed, with clear errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from bonobot.core import environment

NAME = "BONOBOT_TRIAL"

READERS: dict[str, tuple[Callable[[], Any], str, Any, Any]] = {
    "text": (lambda: environment.read_text(NAME, "default"), "given", "given", "default"),
    "flag": (lambda: environment.read_flag(NAME, False), "yes", True, False),
    "number": (lambda: environment.read_number(NAME, 5), "1_000", 1000, 5),
    "names": (lambda: environment.read_names(NAME, ("d",)), "a, b,,a", ("a", "b"), ("d",)),
    "secret": (lambda: environment.read_secret(NAME, "default"), "given", "given", "default"),
}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> tuple[Callable[[], Any], str, Any, Any]:
    return READERS[request.param]


def test_a_variable_is_read(monkeypatch: pytest.MonkeyPatch, reader: Any) -> None:
    read, value, expected, _ = reader
    monkeypatch.setenv(NAME, value)
    assert read() == expected


def test_a_variable_is_read_from_the_file_in_its_file_variable(
    monkeypatch: pytest.MonkeyPatch, reader: Any, tmp_path: Path
) -> None:
    read, value, expected, _ = reader
    (tmp_path / "value").write_text(f"{value}\n", encoding="utf-8")
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "value"))
    assert read() == expected


@pytest.mark.parametrize("blank", [None, "", "  "])
def test_without_a_value_the_default_applies(
    monkeypatch: pytest.MonkeyPatch, reader: Any, blank: str | None
) -> None:
    read, _, _, default = reader
    monkeypatch.delenv(NAME, raising=False)
    if blank is not None:
        monkeypatch.setenv(NAME, blank)
    assert read() == default


def test_a_value_and_a_file_together_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(NAME, "a")
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path))
    with pytest.raises(ImproperlyConfigured, match=f"`{NAME}` and `{NAME}_FILE` are both set"):
        environment.read_text(NAME)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_file_is_reported_with_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "value"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv(f"{NAME}_FILE", str(file))
    with pytest.raises(ImproperlyConfigured, match=f"`{NAME}_FILE` must name a readable text file"):
        environment.read_secret(NAME)


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (lambda: environment.read_flag(NAME, True), "maybe", "`true` or `false`, not 'maybe'"),
        (lambda: environment.read_number(NAME, 1), "ten", "an integer, not 'ten'"),
        (lambda: environment.read_number(NAME, 1), "1.5", "an integer, not '1.5'"),
        (
            lambda: environment.read_number(NAME, 1, minimum=2),
            "1",
            "an integer of at least 2, not '1'",
        ),
        (
            lambda: environment.read_number(NAME, 1, maximum=2),
            "3",
            "an integer of at most 2, not '3'",
        ),
        (
            lambda: environment.read_number(NAME, 1, minimum=1, maximum=2),
            "0",
            "an integer from 1 to 2, not '0'",
        ),
        (
            lambda: environment.read_text(NAME, "a", choices=("a", "b")),
            "c",
            "one of `a`, `b`, not 'c'",
        ),
    ],
)
def test_an_invalid_value_is_reported_with_the_expected_format(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any], value: str, expected: str
) -> None:
    monkeypatch.setenv(NAME, value)
    with pytest.raises(ImproperlyConfigured) as raised:
        read()
    assert str(raised.value) == f"`{NAME}` must be {expected}."


def test_the_default_of_a_secret_is_created_only_when_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def create_secret() -> str:
        calls.append(1)
        return "made"

    monkeypatch.setenv(NAME, "given")
    assert environment.read_secret(NAME, create_secret) == "given"
    assert not calls
    monkeypatch.delenv(NAME)
    assert environment.read_secret(NAME, create_secret) == "made"


def test_unknown_variables_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BONOBOT_ALOWED_HOSTS", "misspelt")
    monkeypatch.setenv("BONOBOT_URL_FILE", "/known")
    assert "BONOBOT_ALOWED_HOSTS" in environment.list_unknown_variables()
    assert "BONOBOT_URL_FILE" not in environment.list_unknown_variables()
    assert environment.list_variables()["BONOBOT_ALLOWED_HOSTS"] == "names"


def test_folders_are_absolute_paths(monkeypatch):
    monkeypatch.setenv("BONOBOT_TEST_FOLDERS", "/srv/a, /srv/b")
    assert environment.read_folders("BONOBOT_TEST_FOLDERS") == ("/srv/a", "/srv/b")
    monkeypatch.setenv("BONOBOT_TEST_FOLDERS", "/srv/a,b")
    with pytest.raises(ImproperlyConfigured, match="absolute paths, not 'b'"):
        environment.read_folders("BONOBOT_TEST_FOLDERS")
