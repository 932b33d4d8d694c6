"""The JSON Schema of a prompt's arguments."""

from mcp_servers.schemas.prompt_arguments import build_prompt_schema


def test_arguments_are_strings_and_required_only_if_declared_so() -> None:
    schema = build_prompt_schema(
        [{"name": "book", "required": True}, {"name": "tone", "description": "Of the review"}]
    )
    assert schema == {
        "type": "object",
        "properties": {
            "book": {"type": "string", "description": ""},
            "tone": {"type": "string", "description": "Of the review"},
        },
        "required": ["book"],
        "additionalProperties": False,
    }
