"""`bonobot mcp add --openapi`: selecting operations of a document."""

import pytest

from mcp_servers.models import Server
from tests.mcp_servers.openapi.documents import PETS, text

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def add_api(tmp_path, bonobot):
    """Return a function that adds an API and returns its selected operations."""
    file = tmp_path / "pets.json"

    def add(*options, paths=PETS, **more):
        file.write_text(text(paths, **more))
        bonobot("mcp", "add", "pets", "--openapi", str(file), "--allow-private", *options)
        server = Server.objects.filter(name="pets").first()
        return server and server.endpoint_config["operations"]

    return add


BASE_URL = ("--base-url", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ((), ["GET /pets", "GET /pets/{id}"]),
        (("--tag", "admin"), ["DELETE /pets/{id}"]),
        (("--operation", "addPet", "--operation", "GET /pets"), ["GET /pets", "POST /pets"]),
        (("--all",), ["DELETE /pets/{id}", "GET /pets", "GET /pets/{id}", "POST /pets"]),
        (("--tag", "nothing"), None),
        (("--operation", "nothing"), None),
    ],
)
def test_operations_are_selected(add_api, options, keys):
    assert add_api(*options, *BASE_URL) == keys


def test_the_base_url_defaults_to_that_of_the_document(add_api):
    assert add_api() is None
    add_api(servers=[{"url": "http://127.0.0.1:9/v1"}])
    assert Server.objects.get().endpoint_config["url"] == "http://127.0.0.1:9/v1"
