"""Tools that need more than one round in the modern era."""

from typing import Any

from tests.servers.conformance_server.calls import (
    BOOLEAN,
    NAME,
    ROOTS,
    STRING,
    Call,
    Json,
    form,
    sampling,
    text,
    tool,
)

CONFIRM = form("Please confirm", ok=BOOLEAN)


@tool()
async def test_input_required_result_elicitation(call: Call) -> Json:
    """Greet who says who they are."""
    answers = await call.ask(user_name=NAME)
    return text(f"Hello, {_get_answer(answers['user_name'], 'name')}!")


@tool()
async def test_input_required_result_sampling(call: Call) -> Json:
    """Tell the capital that the caller's model names."""
    answers = await call.ask(capital_question=sampling("What is the capital of France?"))
    return text(answers["capital_question"]["content"].get("text", ""))


@tool()
async def test_input_required_result_list_roots(call: Call) -> Json:
    """Tell the caller's folders."""
    answers = await call.ask(client_roots=ROOTS)
    return text(_format_folders(answers["client_roots"]))


@tool()
async def test_input_required_result_request_state(call: Call) -> Json:
    """Ask for a yes, and look whether the state came back."""
    await call.ask("to be confirmed", confirm=CONFIRM)
    return text("state-ok" if not call.modern or call.state == "to be confirmed" else "state lost")


@tool()
async def test_input_required_result_tampered_state(call: Call) -> Json:
    """Ask for a yes; the state is sealed, so one that was changed never gets here."""
    await call.ask("whole", confirm=CONFIRM)
    return text("confirmed")


@tool()
async def test_input_required_result_multiple_inputs(call: Call) -> Json:
    """Ask a person, a model, and for folders, at once."""
    answers = await call.ask(
        "all at once",
        user_name=NAME,
        greeting=sampling("Generate a greeting", 50),
        client_roots=ROOTS,
    )
    name = _get_answer(answers["user_name"], "name")
    greeting = answers["greeting"]["content"].get("text", "")
    return text(f"{greeting} {name}: {_format_folders(answers['client_roots'])}")


@tool()
async def test_input_required_result_multi_round(call: Call) -> Json:
    """Ask for a name, then for a colour."""
    step, _, name = call.state.partition(" ")
    if step != "named":
        first = await call.ask("asked", step1=form("Step 1: What is your name?", name=STRING))
        name = _get_answer(first["step1"], "name")
    form_request = form("Step 2: What is your favorite color?", color=STRING)
    second = await call.ask(f"named {name}", step2=form_request)
    return text(f"{name} likes {_get_answer(second['step2'], 'color')}")


@tool()
async def test_input_required_result_capabilities(call: Call) -> Json:
    """Ask only what the caller can answer."""
    capabilities = call.capabilities
    candidates = {
        "user_name": ("elicitation", NAME),
        "greeting": ("sampling", sampling("Generate a greeting", 50)),
        "client_roots": ("roots", ROOTS),
    }
    requests = {
        name: request for name, (need, request) in candidates.items() if need in capabilities
    }
    answers = await call.ask(**requests) if requests else {}
    return text(f"Answered: {', '.join(sorted(answers)) or 'nothing'}")


def _get_answer(answer: Any, name: str) -> Any:
    return (answer.get("content") or {}).get(name, "nobody")


def _format_folders(answer: Any) -> str:
    return ", ".join(root["uri"] for root in answer["roots"]) or "no folders"
