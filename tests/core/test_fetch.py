"""Against a real server on loopback, each of whose folders misbehaves in its own way."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn

import pytest

from harness.cli import main as cli
from harness.core import fetch
from harness.core.errors import BadInput, HarnessError
from harness.core.fetch import DataSet

CONTENTS = {
    f"{name}.gz": random.Random(name).randbytes(200_000 + len(name))
    for name in ("images", "labels")
}
REGISTRY = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
IMAGES, LABELS = REGISTRY
CONTENT = CONTENTS[IMAGES]
CUT = 90_000


class Server(ThreadingMixIn, HTTPServer):
    daemon_threads = False  # so that server_close waits for them

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.closing = threading.Event()

    def mirror(self, folder: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{folder}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        _, folder, name = self.path.split("/")
        self.server.asked.append(folder)
        getattr(self, f"do_{folder}")(CONTENTS[name])

    def do_good(self, content: bytes) -> None:
        self.answer(content)
        self.wfile.write(content)

    def do_never(self, content: bytes) -> None:
        """Has no byte after CUT."""
        self.answer(content)
        self.wfile.write(content[:CUT])

    def do_hang(self, content: bytes) -> None:
        """Goes silent at byte CUT."""
        self.do_never(content)
        self.server.closing.wait()

    def do_wrong(self, content: bytes) -> None:
        self.do_good(content[::-1])

    def do_gone(self, content: bytes) -> None:
        self.send_error(404)

    def answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()

    def handle(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # a client that has seen enough
            super().handle()

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    threads = threading.active_count()
    with Server() as server:
        loop = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        loop.start()
        yield server
        server.closing.set()
        server.shutdown()
        loop.join()
    assert threading.active_count() <= threads  # one of another test may have ended meanwhile


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT", 0.4)


@pytest.fixture
def get(server: Server, to: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what fetches a file from mirrors."""

    def from_mirrors(*folders: str, **options: bool) -> None:
        mirrors = tuple(server.mirror(folder) for folder in folders)
        data_set = DataSet((*mirrors,), {IMAGES: REGISTRY[IMAGES]})
        monkeypatch.setitem(fetch.DATA_SETS, "mnist", data_set)
        list(fetch.fetch_files("mnist", to, **options))

    return from_mirrors


Get = Callable[..., None]


def is_whole(to: Path) -> bool:
    return [path.name for path in to.iterdir()] == [IMAGES] and (
        to / IMAGES
    ).read_bytes() == CONTENT


@pytest.mark.parametrize("folder", ["never", "hang", "wrong"])
def test_a_download_that_is_cut_or_wrong_leaves_no_file(get: Get, to: Path, folder: str) -> None:
    with pytest.raises(
        HarnessError, match=rf"^{IMAGES}: all mirrors failed: .*{folder}/: "
    ) as caught:
        get(folder)
    assert "\n" not in str(caught.value)
    assert list(to.iterdir()) == []


@pytest.mark.parametrize("bad", ["gone", "wrong", "never", "hang"])
def test_the_next_mirror_is_tried(server: Server, get: Get, to: Path, bad: str) -> None:
    get(bad, "good")
    assert is_whole(to)
    assert server.asked[:2] == [bad, "good"]


def test_a_different_file_under_the_name_is_left_alone(get: Get, to: Path) -> None:
    (to / IMAGES).write_bytes(b"my own")
    with pytest.raises(BadInput, match=rf"{IMAGES}: found a different file .*{REGISTRY[IMAGES]}"):
        get("good")
    assert (to / IMAGES).read_bytes() == b"my own"


def test_a_folder_that_can_not_be_used_is_bad_input(server: Server, to: Path) -> None:
    (to / "file").touch()
    with pytest.raises(BadInput, match="can't be used: Not a directory; allowed: a folder that"):
        list(fetch.fetch_files("mnist", to / "file" / "folder"))
    assert server.asked == []


def test_the_command(
    server: Server, to: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(fetch.DATA_SETS, "mnist", DataSet((server.mirror("good"),), REGISTRY))
    (to / "my data").mkdir()
    (to / "my data" / LABELS).write_bytes(CONTENTS[LABELS])
    expected = [
        f"✓ {IMAGES}: fetched and verified, 200,006 bytes",
        f"✓ {LABELS}: already there, 200,006 bytes",
        f"next  harness run mnist --data '{to}/my data'",
    ]
    for state in ("fetched and verified", "already there"):
        with pytest.raises(SystemExit) as caught:
            cli.main(["fetch", "mnist", "--to", str(to / "my data")])
        assert not caught.value.code
        expected[0] = f"✓ {IMAGES}: {state}, 200,006 bytes"
        assert capsys.readouterr().out.splitlines() == expected
    assert server.asked == ["good"]
