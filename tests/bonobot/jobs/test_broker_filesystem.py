"""The filesystem broker never delivers an incomplete message."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty

import pytest
from kombu import Connection
from kombu.exceptions import ChannelError

from bonobot.jobs import broker

MESSAGE = {"body": "x" * 100, "headers": {"task": "agents.tasks.run_session"}}


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[broker.FilesystemBrokerChannel]:
    for name in ("messages", "control", "taken"):
        (tmp_path / name).mkdir()
    options = {
        "data_folder_in": str(tmp_path / "messages"),
        "data_folder_out": str(tmp_path / "messages"),
        "control_folder": str(tmp_path / "control"),
        "processed_folder": str(tmp_path / "taken"),
    }
    with Connection(
        transport=broker.FilesystemBrokerTransport, transport_options=options
    ) as connection:
        yield connection.default_channel


def test_messages_are_received_in_order(channel: broker.FilesystemBrokerChannel) -> None:
    for number in range(3):
        channel._put("sessions", MESSAGE | {"n": number})
        channel._put("default", {"n": "another queue's"})
    assert sorted(channel._get("sessions")["n"] for _ in range(3)) == [0, 1, 2]
    with pytest.raises(Empty):
        channel._get("sessions")


def test_two_consumers_receive_each_message_once(channel: broker.FilesystemBrokerChannel) -> None:
    other_channel = channel.connection.create_channel(channel.connection)
    for number in range(6):
        channel._put("sessions", MESSAGE | {"n": number})
    received = [
        consumer._get("sessions")["n"] for _ in range(3) for consumer in (channel, other_channel)
    ]
    assert sorted(received) == list(range(6))
    for consumer in (channel, other_channel):
        with pytest.raises(Empty):
            consumer._get("sessions")


def test_one_listing_finds_the_messages_of_all_queues(
    channel: broker.FilesystemBrokerChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed_folders = []

    def record_and_list(folder: str) -> list[str]:
        listed_folders.append(folder)
        return list_directory(folder)

    list_directory = os.listdir
    monkeypatch.setattr(os, "listdir", record_and_list)
    monkeypatch.setattr(broker, "monotonic", lambda: 1_000.0)
    for number in range(3):
        channel._put("sessions", MESSAGE | {"n": number})
    channel._put("discovery", MESSAGE)
    for _ in range(3):
        with pytest.raises(Empty):
            channel._get("default")
        assert channel._get("sessions")["body"] == MESSAGE["body"]
    assert channel._get("discovery") == MESSAGE
    assert len(listed_folders) == 1


def test_a_long_queue_doesnt_hide_messages_of_another(
    channel: broker.FilesystemBrokerChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(broker, "monotonic", lambda: now)
    for number in range(3):
        channel._put("sessions", MESSAGE | {"n": number})
    received = [channel._get("sessions")["n"]]
    channel._put("default", MESSAGE)
    now += 2 * broker.RESCAN_INTERVAL_S
    assert channel._get("default") == MESSAGE
    received += [channel._get("sessions")["n"] for _ in range(2)]
    assert sorted(received) == [0, 1, 2]


def test_messages_that_are_purged_meanwhile_cause_no_error(
    channel: broker.FilesystemBrokerChannel,
) -> None:
    for number in range(3):
        channel._put("sessions", MESSAGE | {"n": number})
    channel._get("sessions")
    assert channel._purge("sessions") == 2
    with pytest.raises(Empty):
        channel._get("sessions")
    channel._put("sessions", MESSAGE)
    assert channel._get("sessions") == MESSAGE


def test_a_message_is_visible_only_when_complete(
    channel: broker.FilesystemBrokerChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = []

    def check_and_rename(temporary: Path, target: Path) -> None:
        with pytest.raises(Empty):
            channel._get("sessions")
        contents.append(temporary.read_text())
        rename(temporary, target)

    rename = os.replace
    monkeypatch.setattr(Path, "replace", check_and_rename)
    channel._put("sessions", MESSAGE)
    assert len(contents[0]) > 100
    assert channel._get("sessions") == MESSAGE


def test_a_full_disk_is_reported_and_leaves_no_files(
    channel: broker.FilesystemBrokerChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(temporary: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ChannelError, match="Cannot write the message"):
        channel._put("sessions", MESSAGE)
    assert not list(Path(channel.data_folder_out).iterdir())


def test_the_settings_use_this_broker() -> None:
    with Connection("filesystem://localhost") as connection:
        assert connection.get_transport_cls() is broker.FilesystemBrokerTransport


def test_a_worker_without_messages_can_stop_soon(channel: broker.FilesystemBrokerChannel) -> None:
    started_at = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.connection.client.drain_events(timeout=60.0)
    assert time.monotonic() - started_at < 30
