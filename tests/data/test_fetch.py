"""Fetching from a local server: checksums, resume, mirrors, offline folders, truncated and tampered files."""

import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dist_mp.data import fetch as fetching
from dist_mp.data.catalogue import CatalogueEntry, RemoteFile, catalogue, find_entry
from dist_mp.data.fetch import fetch
from dist_mp.errors import UserError

CONTENT = np.random.default_rng(5).bytes(200_000)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves CONTENT, with byte ranges, and some ways of doing it wrong by the first part of the path."""

    protocol_version = "HTTP/1.1"
    log: list[tuple[str, str | None]]
    failures: list[int]

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        asked = self.headers.get("Range")
        self.log.append((self.path, asked))
        content = CONTENT
        if kind == "gone":
            self.send_error(404)
            return
        if kind == "tampered":
            content = CONTENT[:99] + b"!" + CONTENT[100:]
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and kind != "norange" else 0
        if begin >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.send_header("Connection", "close")
        self.end_headers()
        body = content[begin:]
        if kind == "truncated" or (kind == "flaky" and self.failures):
            keep = self.failures.pop() if kind == "flaky" else 1000
            body = body[:keep]
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Server:
    def __init__(self, url: str, log: list[tuple[str, str | None]], failures: list[int]) -> None:
        self.url, self.log, self.failures = url, log, failures

    def entry(self, kind: str, size: int | None = None) -> CatalogueEntry:
        checksum = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
        file = RemoteFile("noise.bin", f"{self.url}/{kind}/noise.bin", checksum, size)
        return CatalogueEntry("noise", "noise", "none", self.url, "", (file,))


@pytest.fixture
def server() -> Iterator[Server]:
    log: list[tuple[str, str | None]] = []
    failures: list[int] = []
    handler = type("Logged", (Handler,), {"log": log, "failures": failures})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler)) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield Server(f"http://127.0.0.1:{httpd.server_address[1]}", log, failures)
        httpd.shutdown()
        thread.join(10)


@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_a_file_is_fetched_once(server: Server, tmp_path: Path, size: int | None) -> None:
    seen: list[tuple[str, int, int | None]] = []
    for _ in range(2):
        (path,) = fetch(server.entry("whole", size), tmp_path / "d", progress=lambda *a: seen.append(a))
        assert path.read_bytes() == CONTENT
    assert len(server.log) == 1
    assert seen[-1] == ("noise.bin", len(CONTENT), len(CONTENT))
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["noise.bin"]


def test_a_download_that_was_cut_off_is_continued(server: Server, tmp_path: Path) -> None:
    (tmp_path / "noise.bin.part").write_bytes(CONTENT[:70_000])
    (path,) = fetch(server.entry("whole"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.log == [("/whole/noise.bin", "bytes=70000-")]
    assert not (tmp_path / "noise.bin.part").exists()


def test_a_broken_connection_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.failures.extend([90_000, 50_000])
    (path,) = fetch(server.entry("flaky"), tmp_path)
    assert path.read_bytes() == CONTENT
    begins = [int(asked.removeprefix("bytes=").removesuffix("-")) for _, asked in server.log if asked]
    # What has come is kept, but for the last piece of at most 8 KiB.
    assert len(begins) == 2 and 0 <= 50_000 - begins[0] < 8192 and 0 <= begins[0] + 90_000 - begins[1] < 8192


def test_a_server_without_ranges_sends_everything_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "noise.bin.part").write_bytes(CONTENT[:70_000])
    (path,) = fetch(server.entry("norange"), tmp_path)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_a_part_of_something_else(server: Server, tmp_path: Path, size: int | None) -> None:
    (tmp_path / "noise.bin.part").write_bytes(b"x" * (len(CONTENT) + 7))
    (path,) = fetch(server.entry("whole", size), tmp_path)
    assert path.read_bytes() == CONTENT
    path.unlink()
    (tmp_path / "noise.bin.part").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match="is not the file of noise: its checksum is not sha256:"):
        fetch(server.entry("whole", size), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert fetch(server.entry("whole", size), tmp_path)[0].read_bytes() == CONTENT


def test_a_truncated_file_leaves_its_part(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\(3 tries\); noise.bin.part stays and is continued") as caught:
        fetch(server.entry("truncated"), tmp_path)
    assert str(caught.value).isprintable()
    assert [p.name for p in tmp_path.iterdir()] == ["noise.bin.part"]
    assert CONTENT.startswith((tmp_path / "noise.bin.part").read_bytes())
    assert fetch(server.entry("whole"), tmp_path)[0].read_bytes() == CONTENT


@pytest.mark.parametrize("size", [None, len(CONTENT), 150_000])
def test_a_tampered_file_is_refused(server: Server, tmp_path: Path, size: int | None) -> None:
    with pytest.raises(UserError, match=r"tampered/noise.bin: is not the file of noise: its checksum is not") as caught:
        fetch(server.entry("tampered", size), tmp_path)
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


def test_addresses_that_do_not_answer(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the server answers 404 Not Found"):
        fetch(server.entry("gone"), tmp_path)
    entry = server.entry("whole")
    (file,) = entry.files
    closed = replace(entry, files=(replace(file, url="http://127.0.0.1:9/noise.bin"),))
    with pytest.raises(UserError, match=r"http://127.0.0.1:9/noise.bin: .*\(3 tries\)") as caught:
        fetch(closed, tmp_path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250
    with pytest.raises(UserError, match="No scheme supplied"):
        fetch(entry, tmp_path, mirror="mirror")
    assert list(tmp_path.iterdir()) == []


def test_a_mirror_and_a_folder(server: Server, tmp_path: Path) -> None:
    (path,) = fetch(server.entry("gone"), tmp_path / "a", mirror=f"{server.url}/whole/")
    assert path.read_bytes() == CONTENT
    assert server.log == [("/whole/noise/noise.bin", None)]
    for place in ("shelf/noise.bin", "shelf2/noise/noise.bin"):
        stored = tmp_path / place
        stored.parent.mkdir(parents=True)
        stored.write_bytes(CONTENT)
        shelf = tmp_path / place.split("/")[0]
        (path,) = fetch(server.entry("gone"), tmp_path / f"to-{shelf.name}", offline=shelf)
        assert path.read_bytes() == CONTENT
        assert stored.read_bytes() == CONTENT
    assert len(server.log) == 1
    bad = tmp_path / "bad"
    bad.mkdir()
    with pytest.raises(UserError, match=r"bad: holds neither noise.bin nor noise/noise.bin"):
        fetch(server.entry("whole"), tmp_path / "c", offline=bad)
    (bad / "noise.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(UserError, match=r"bad/noise.bin: is not the file of noise: its checksum is not"):
        fetch(server.entry("whole"), tmp_path / "c", offline=bad)
    assert (bad / "noise.bin").read_bytes() == CONTENT[:-1]
    assert list((tmp_path / "c").iterdir()) == []


def test_nothing_is_written_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / "noise.bin").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"noise.bin: is not the file of noise .* remove it"):
        fetch(server.entry("whole"), tmp_path)
    assert (tmp_path / "noise.bin").read_bytes() == b"mine"
    (tmp_path / "dir/noise.bin").mkdir(parents=True)
    with pytest.raises(UserError, match=r"is in the way"):
        fetch(server.entry("whole"), tmp_path / "dir")
    with pytest.raises(UserError, match=r"cannot be written"):
        fetch(server.entry("whole"), tmp_path / "noise.bin/below")


def test_the_catalogue_is_complete() -> None:
    lengths = {"sha256": 64, "md5": 32}
    for name, entry in catalogue().items():
        assert entry.name == name
        assert entry.licence and entry.title and entry.use and entry.source
        for file in entry.files:
            kind, _, digest = file.checksum.partition(":")
            assert len(digest) == lengths[kind] and set(digest) <= set("0123456789abcdef")
            assert file.url.endswith(f"/{file.name}")
    assert find_entry("cifar10").size == 170_052_171
    assert find_entry("ptb").size is None
    with pytest.raises(UserError, match="no data set 'minst'; did you mean mnist"):
        find_entry("minst")
    with pytest.raises(UserError, match="no data set 'xyz'; there are ptb, imdb, "):
        find_entry("xyz")
    assert fetching.fetch(find_entry("campaign"), Path("unused")) == []
