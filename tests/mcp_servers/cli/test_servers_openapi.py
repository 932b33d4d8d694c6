"""`bonobot mcp add --openapi`: the choice of operations, from a file."""

import pytest

from mcp_servers.models import Server
from tests.mcp_servers.openapi.documents import PETS, text

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def added(tmp_path, bonobot):
    """Return the keys that options choose; nothing answers at the address."""
    file = tmp_path / "pets.json"

    def go(*options, paths=PETS, **more):
        file.write_text(text(paths, **more))
        bonobot("mcp", "add", "pets", "--openapi", str(file), "--allow-private", *options)
        server = Server.objects.filter(name="pets").first()
        return server and server.endpoint_config["operations"]

    return go


HERE = ("--base-url", "http://127.0.0.1:9")


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
def test_operations_are_selected(added, options, keys):
    assert added(*options, *HERE) == keys


def test_the_base_url_defaults_to_that_of_the_document(added):
    assert added() is None
    added(servers=[{"url": "http://127.0.0.1:9/v1"}])
    assert Server.objects.get().endpoint_config["url"] == "http://127.0.0.1:9/v1"
