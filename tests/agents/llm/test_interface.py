"""The model interface: JSON messages without library types, hidden keys, cheap to import."""

import json
import subprocess
import sys

import pytest

from agents.llm.interface import (
    ModelEndpointConfig,
    ModelError,
    ProviderModel,
    ToolCall,
    build_assistant_message,
    build_call_id,
    build_model,
    build_tool_result,
    build_user_message,
)
from agents.llm.offline import OfflineModel


def test_the_repr_of_an_endpoint_hides_its_key() -> None:
    assert "sk-secret" not in repr(ModelEndpointConfig("openai", "http://x/v1", "sk-secret", "m"))


def test_an_endpoint_without_a_url_uses_openai() -> None:
    assert ModelEndpointConfig("openai").url == "https://api.openai.com/v1"


def test_the_kind_of_an_endpoint_decides_the_model() -> None:
    assert isinstance(build_model(ModelEndpointConfig("offline")), OfflineModel)
    assert isinstance(
        build_model(ModelEndpointConfig("openai", "http://x/v1", "", "m")), ProviderModel
    )


def test_call_ids_have_nine_characters_and_are_unique_by_turn_and_index() -> None:
    ids = [build_call_id(turn, index) for turn in range(1, 60) for index in range(200)]
    assert len(set(ids)) == len(ids)
    assert {len(id_) for id_ in ids} == {9}
    assert all(id_.isalnum() for id_ in ids)


def test_messages_can_be_serialized_as_json() -> None:
    call = ToolCall(0, "t", None, "{bad", "t0001c000")
    messages = [
        build_user_message("hi"),
        build_assistant_message(1, "text", [call], native={"kind": "response"}),
        build_tool_result(call.id, "t", "no", is_error=True),
    ]
    assert json.loads(json.dumps(messages)) == messages
    assert messages[1]["calls"] == [
        {"id": "t0001c000", "name": "t", "arguments": None, "raw": "{bad"}
    ]


@pytest.mark.parametrize(
    ("code", "retryable"),
    [
        ("model_unreachable", True),
        ("model_rate_limited", True),
        ("model_timeout", True),
        ("model_auth", False),
        ("model_error", False),
        ("model_bad_answer", False),
    ],
)
def test_a_code_decides_whether_a_retry_may_help(code: str, retryable: bool) -> None:
    assert ModelError("no", code=code).retryable is retryable
    assert ModelError("no", code=code, retryable=not retryable).retryable is not retryable


def test_importing_the_interface_doesnt_load_the_model_library() -> None:
    program = (
        "import sys; from agents.llm import interface, offline;"
        "interface.build_model(interface.ModelEndpointConfig('openai', 'http://x/v1', '', 'm'));"
        "interface.build_model(interface.ModelEndpointConfig('offline'));"
        "heavy = {'pydantic_ai', 'openai', 'httpx2', 'genai_prices'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert process.stdout.strip() == "[]"
