import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from eulerstack.errors import ExportError
from eulerstack.export import hub

FETCH = """
import sys
from eulerstack.export.hub import fetch, locate
print(locate(sys.argv[1]), fetch(sys.argv[1]) == locate(sys.argv[1]) != None)
"""
COMMIT = "c" * 40
PUBLISHED = {
    "/nice/tokenizer/resolve/main/tokenizer.json": b'{"version": "1.0"}',
    "/nice/tokenizer/resolve/main/tokenizer_config.json": b"{}",
}


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as a download needs."""

    def answer(self):
        content = PUBLISHED.get(self.path)
        self.send_response(404 if content is None else 200)
        if content is None:
            known = self.path.startswith("/nice/tokenizer/")
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
        else:
            self.send_header("ETag", f'"{hash(content) & 0xFFFF:040d}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        return content

    do_HEAD = answer

    def do_GET(self):
        self.wfile.write(self.answer() or b"")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EULERSTACK_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def publish(folder, revision="abc"):
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(revision)
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "tokenizer.json").write_text("{}")


def test_a_directory_goes_before_the_hub(home):
    publish(home / "hf" / "hub" / "models--mine")
    assert hub.locate("mine") == home / "hf" / "hub" / "models--mine" / "snapshots" / "abc"
    (home / "mine").mkdir()
    (home / "mine" / "tokenizer.json").write_text("{}")
    assert hub.locate("mine") == home / "mine"
    assert hub.locate(str(home / "mine")) == home / "mine"


def test_the_hubs_cache(home, monkeypatch):
    publish(home / "hf" / "hub" / "models--org--name")
    assert hub.locate("org/name").name == "abc"
    assert hub.locate("org/other") is None
    publish(home / "hf" / "hub" / "models--org--stale", revision="def")
    assert hub.locate("org/stale") is None
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "empty"))
    assert hub.locate("org/name") is None


@pytest.mark.parametrize("name", ["./none", "/none", "~/none", "a/b/c"])
def test_a_path_that_does_not_exist_is_no_hub_name(home, name):
    with pytest.raises(ExportError, match="there is no directory"):
        hub.locate(name)


def test_a_directory_without_a_tokenizer(home):
    (home / "mine").mkdir()
    with pytest.raises(ExportError, match=r"holds no tokenizer\.json"):
        hub.locate("mine")


def test_a_server_answers_or_not(server):
    assert hub.answers(server, 10.0)
    assert hub.answers(f"{server}/nothing/here", 10.0)
    assert not hub.answers("http://127.0.0.1:9", 10.0)


def test_a_silent_server_is_not_waited_for():
    silent = ThreadingHTTPServer(("127.0.0.1", 0), Hub)  # listens, and is never served
    try:
        start = time.monotonic()
        assert not hub.answers(f"http://127.0.0.1:{silent.server_port}", 0.2)
        assert time.monotonic() - start < 2
    finally:
        silent.server_close()


def run_fetch(name, **env):
    done = subprocess.run(
        [sys.executable, "-c", FETCH, name], env=os.environ | env, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_fetching_fills_the_cache_that_locate_reads(home, server):
    assert run_fetch("nice/tokenizer", HF_ENDPOINT=server) == ["None", "True"]
    found = hub.locate("nice/tokenizer")
    assert found.name == COMMIT
    assert {p.name: p.read_bytes() for p in found.iterdir()} == {
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b"{}",
    }


def test_what_the_hub_does_not_have(home, server):
    assert run_fetch("not/there", HF_ENDPOINT=server) == ["None", "False"]
    assert run_fetch("no such name", HF_ENDPOINT=server) == ["None", "False"]


@pytest.mark.parametrize(
    ("variable", "value", "hub_in"),
    [
        ("HF_HOME", "{}", "hub"),
        ("HF_HUB_CACHE", "{}", ""),
        ("HUGGINGFACE_HUB_CACHE", "{}", ""),
        ("XDG_CACHE_HOME", "{}", "huggingface/hub"),
        ("HF_HOME", "$EULERSTACK_HOME/cache", "hub"),
    ],
)
def test_the_hubs_cache_is_where_the_hubs_library_keeps_it(home, monkeypatch, variable, value, hub_in):
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value.format(home / "cache"))
    where = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    asked = subprocess.run([sys.executable, "-c", where], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == str(home / "cache" / hub_in).rstrip("/")
    repository = home / "cache" / hub_in / "models--nice--tokenizer"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").touch()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    assert hub.locate("nice/tokenizer") == snapshot


def test_out_of_reach_fails_fast_and_once(home, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    hub.fetch.cache_clear()
    start = time.monotonic()
    assert hub.fetch("some/name") is None
    assert time.monotonic() - start < hub.PATIENCE + 1
    monkeypatch.setattr(hub, "answers", None)  # a second attempt would call it
    assert hub.fetch("some/name") is None


def test_offline_by_request_asks_nobody(home, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(hub, "answers", None)
    hub.fetch.cache_clear()
    assert hub.fetch("some/name") is None
