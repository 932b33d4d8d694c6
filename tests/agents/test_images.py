"""Images: type detection, storage, and what models and people get."""

import base64
from contextlib import AsyncExitStack

import pytest

from agents.images import (
    MAX_IMAGE_BYTES,
    MAX_RESULT_IMAGES,
    MAX_SHOWN_IMAGES,
    detect_media_type,
    extract_images,
    get_session_blob,
    load_message_images,
    store_images,
)
from agents.llm.interface import ImageData, build_user_message
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Blob, ModelEndpoint, Session, Step
from agents.sessions.events import build_step_data
from bonobot.core.problems import NotFound
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from tests import factories
from tests.agents.llm.anthropic_server import anthropic_server
from tests.agents.llm.provider_server import Says
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
TOOLS = {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}


def part(data: bytes, declared: str = "image/png") -> dict[str, str]:
    return {"type": "image", "mimeType": declared, "data": base64.b64encode(data).decode()}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"<svg onload=alert(1)>", ""),
        (b"<html>", ""),
        (b"", ""),
    ],
)
def test_an_image_is_detected_by_its_content_only(data: bytes, kind: str) -> None:
    assert detect_media_type(data) == kind
    images = extract_images({"content": [part(data, "image/png")]})
    assert [image.media_type for image in images] == ([kind] if kind else [])


@pytest.mark.parametrize(
    "content",
    [
        None,
        "text",
        [1, None, {"type": "image"}, {"type": "image", "data": 7}],
        [{"type": "image", "data": "not base64!"}],
        [{"type": "resource", "resource": None}],
        [part(PNG + bytes(MAX_IMAGE_BYTES))],
    ],
)
def test_content_that_isnt_an_image_is_omitted(content: object) -> None:
    assert extract_images({"content": content}) == ()


def test_the_number_of_images_of_a_result_is_limited() -> None:
    assert len(extract_images({"content": [part(PNG)] * 50})) == MAX_RESULT_IMAGES


@pytest.mark.django_db
def test_equal_images_are_stored_once_per_organization() -> None:
    acme, other_organization = (
        factories.create_organization(),
        factories.create_organization("other"),
    )
    stored = store_images(acme.pk, [ImageData("image/gif", PNG)] * 2)
    store_images(other_organization.pk, [ImageData("image/png", PNG)])
    assert [image["media_type"] for image in stored] == ["image/png"] * 2
    assert sorted(Blob.objects.values_list("organization_id", flat=True)) == sorted(
        [acme.pk, other_organization.pk]
    )


@pytest.mark.django_db
def test_the_latest_images_are_sent_to_a_model_with_image_input() -> None:
    acme = factories.create_organization()
    images = [ImageData("image/png", PNG + bytes([n])) for n in range(MAX_SHOWN_IMAGES + 3)]
    messages = [
        build_user_message("x") | {"images": [item]} for item in store_images(acme.pk, images)
    ]
    loaded = load_message_images(acme.pk, messages, image_input=True)
    assert ["images" in item for item in loaded] == [False] * 3 + [True] * MAX_SHOWN_IMAGES
    assert loaded[-1]["images"] == [{"media_type": "image/png", "data": images[-1].data}]
    assert not any(
        "images" in item for item in load_message_images(acme.pk, messages, image_input=False)
    )
    other_organization = factories.create_organization("other")
    assert not any(
        "images" in item
        for item in load_message_images(other_organization.pk, messages, image_input=True)
    )


@pytest.fixture
def image_model(acme, helper):
    """The helper's model; a server whose tool returns an image is attached to the helper."""

    def answer(request):
        results = {
            "server/discover": {
                "supportedVersions": [raw_http_server.MODERN],
                "capabilities": {"tools": {}},
            },
            "tools/list": TOOLS,
            "tools/call": {"content": [{"type": "text", "text": "here"}, part(PNG)]},
        }
        return raw_http_server.result(request, results[request.method])

    http, stack = RawHttp(answer), AsyncExitStack()
    get_runtime().call(stack.enter_async_context, http.listening())
    model = get_runtime().call(stack.enter_async_context, anthropic_server())
    server = factories.create_http_server(acme, http.url, "eyes")
    factories.approve_server(acme, server, helper)
    helper.model_endpoint = save_endpoint(
        factories.build_administrator(acme),
        ModelEndpointSpec(
            name="Seer",
            kind="anthropic",
            base_url=model.url,
            model="claude-opus-4-8",
            api_key="k",
            allow_private=True,
            image_input=True,
        ),
    )
    helper.save()
    yield model
    get_runtime().call(get_connection_pool().forget_server, server.pk)
    get_runtime().call(stack.aclose)


@pytest.fixture
def run(image_model, run):
    def go():
        image_model.script += [Says(calls=(("c", "mcp_eyes_look", "{}"),)), Says("a cat")]
        session = run("look")
        assert session.status == Session.Status.DONE, session.error_detail
        return session

    return go


@pytest.mark.django_db(transaction=True)
def test_an_image_of_a_tool_reaches_the_model_and_no_row(image_model, run, acme) -> None:
    session = run()
    assert [message.text for message in image_model.read(1).with_role("image")] == [
        base64.b64encode(PNG).decode()
    ]
    step = session.steps.get(kind=Step.Kind.CALL)
    (image,) = build_step_data(step)["images"]
    assert base64.b64encode(PNG).decode() not in str(step.payload)
    assert bytes(get_session_blob(session, image["sha256"]).data) == PNG
    (other_image,) = store_images(acme.pk, [ImageData("image/png", PNG + b"another")])
    with pytest.raises(NotFound):
        get_session_blob(session, other_image["sha256"])


@pytest.mark.django_db(transaction=True)
def test_a_model_without_image_input_gets_a_description(image_model, run, helper) -> None:
    ModelEndpoint.objects.filter(pk=helper.model_endpoint_id).update(image_input=False)
    run()
    assert image_model.read(1).with_role("image") == []
    assert "[image image/png, 14 bytes]" in image_model.read(1).with_role("result")[0].text
