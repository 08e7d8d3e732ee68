"""``rescorer rescore`` and ``rescorer shards`` with objects: what users see, and what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

import fsspec
import pytest

from rescorer import storage as storage_module
from rescorer.storage import open_filesystem
from tests.support.object_storage import put, refuse
from tests.support.sharding import BATCH_WORDS, make_lines, write_lines


@pytest.fixture
def lists(bucket):
    put(f"{bucket}/in.jsonl", "".join(f"{line}\n" for line in make_lines(40)))
    return f"{bucket}/in.jsonl"


@pytest.fixture
def rescore(run, ngram_bundle):
    """Run ``rescorer rescore`` in this process."""
    return lambda *arguments: run(
        "rescore", *arguments, "--bundle", ngram_bundle, "--batch-words", BATCH_WORDS
    )


@pytest.fixture
def new_clients():
    """Let the test change the environment, which clients of a storage read when they are made."""
    clear = type(open_filesystem("s3://any")).clear_instance_cache
    clear()
    yield
    clear()


@pytest.mark.slow
def test_processes_that_plan_and_run_the_same_shard_give_the_plain_output(
    run, rescore, lists, bucket, ngram_bundle, tmp_path
):
    """Two processes start without a plan; both make one, and run its first shard."""
    command = [sys.executable, "-m", "rescorer.cli", "rescore", lists, "-o", f"{bucket}/out"]
    command += [
        "--shards",
        "3",
        "--shard",
        "0",
        "--bundle",
        str(ngram_bundle),
        "--batch-words",
        str(BATCH_WORDS),
    ]
    racers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ends = [(racer.communicate()[1], racer.returncode) for racer in racers]
    assert all(code in (0, 1) and "Traceback" not in err for err, code in ends), ends
    status = json.loads(run("shards", "status", f"{bucket}/out", "--json")[1])
    assert (status["committed"], status["missing"], status["attempts"]) == (1, [1, 2], [])
    code, _, err = rescore(lists, "-o", f"{bucket}/out", "--resume")
    assert "1 of 3 shards committed before" in err
    assert run("shards", "verify", f"{bucket}/out", "--inputs")[0] == 0
    assert run("shards", "merge", f"{bucket}/out", "-o", tmp_path / "merged")[0] == 0
    local = write_lines(tmp_path / "in.jsonl", make_lines(40))
    assert rescore(local, "-o", tmp_path / "plain")[0] == 1
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "plain").read_bytes()
    rejects = [(tmp_path / f"{name}.rejects").read_text() for name in ("plain", "merged")]
    assert rejects[1] == rejects[0].replace(str(local), lists)
    code, out, _ = run("shards", "clean", f"{bucket}/out", "--older-than", 0)
    assert (code, out) == (0, "0 files deleted, 0.0 MB\n")


def test_reads_an_object_as_it_reads_a_file(rescore, lists, bucket, tmp_path):
    local = write_lines(tmp_path / "in.jsonl", make_lines(40))
    for name, source in (("a", lists), ("b", local), ("c", f"file://{local}")):
        assert rescore(source, "-o", tmp_path / name)[0] == 1
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    forecasts = [json.loads(rescore(source, "--plan", "--json")[1]) for source in (bucket, local)]
    for name in ("lists", "hypotheses", "words", "unreadable", "sampled_lists"):
        assert forecasts[0][name] == forecasts[1][name]


def test_an_object_that_changed_is_refused_or_fails_its_shard(rescore, lists, bucket):
    assert rescore(lists, "-o", f"{bucket}/out", "--shards", 3, "--plan-only")[0] == 0
    content = "".join(f"{line}\n" for line in make_lines(40))
    put(lists, content.replace('"u39"', '"v39"'))
    code, _, err = rescore(lists, "-o", f"{bucket}/out", "--resume")
    assert (code, "shard 2: " in err, "have changed since the plan" in err) == (3, True, True), err
    put(lists, content + "\n")
    code, _, err = rescore(lists, "-o", f"{bucket}/out", "--resume")
    assert (code, "in.jsonl: changed since the plan: it had" in err) == (3, True), err


def test_shards_below_their_own_input_are_not_read(run, rescore, lists, bucket):
    for options in (("--shards", 2, "--plan-only"), ("--resume",), ("--resume",)):
        code, _, err = rescore(bucket, "-o", f"{bucket.replace('s3:', 'S3A:')}/out/", *options)
        assert code in (0, 1), err
    status = json.loads(run("shards", "status", f"{bucket}/out", "--json")[1])
    assert (status["committed"], status["missing"]) == (2, [])


def test_file_urls_are_files(run, lists, bucket, tmp_path):
    url = (tmp_path / "a b.jsonl").as_uri()
    write_lines(tmp_path / "a b.jsonl", make_lines(3))
    assert "lists" in run("inspect", url)[1]
    code, _, err = run("convert", url, (tmp_path / "c.parquet").as_uri(), "--to", "parquet")
    assert (code, (tmp_path / "c.parquet").is_file()) == (0, True), err
    code, _, err = run("convert", lists, f"{bucket}/c.parquet", "--to", "parquet")
    assert (code, "expected a file or folder of this machine; objects can only be read" in err) == (2, True)


def test_says_what_is_wrong_with_places(run, rescore, lists, bucket, ngram_bundle):
    for arguments, code, message in [
        ((f"{bucket}/none.jsonl",), 3, "none.jsonl: cannot be read: there is no such object"),
        (("s3://no-such-bucket/a", "-o", bucket, "--shards", 2), 3, "there is no such bucket"),
        ((lists, "-o", "s3://no-such-bucket/out", "--shards", 2), 2, "there is no such bucket"),
        ((lists, "-o", "memory://out", "--shards", 2), 2, "not known to create an object only once"),
        ((lists, "-o", f"{bucket}/out"), 2, "an object is written only for shards"),
        (("nothing://a",), 2, "unknown protocol 'nothing'"),
        (("zip://a",), 2, "zip://a: cannot be opened by fsspec: "),
        (("data://a",), 3, "data://a: cannot be read: the storage fails: not enough values"),
        (("s3://a b/c",), 3, 'Parameter validation failed: Invalid bucket name "a b"'),
        (("file:///a%00b",), 2, "file:///a%00b: no file has such a name, with %00"),
        (("file://localhost/none",), 3, "/none: cannot be read: No such file or directory"),
        ((f"{bucket}/{'a' * 5000}",), 3, ": cannot be read: "),
        (("s3://",), 2, "s3://: expected the name of a bucket, such as s3://BUCKET/KEY"),
        ((lists, "-o", "s3://", "--shards", 2), 2, "expected the name of a bucket"),
    ]:
        found, _, err = rescore(*arguments)
        assert (found, message in err, err.count("\n")) == (code, True, 1), err
    code, _, err = rescore(lists, "--format", "kaldi")
    assert (code, "kaldi is read from folders of this machine" in err) == (3, True), err
    code, _, err = run("shards", "merge", f"{bucket}/none", "-o", f"{bucket}/merged")
    assert (code, "expected a file of this machine, or - for a pipe" in err) == (2, True), err
    code, _, err = run("shards", "status", f"{bucket}/none")
    assert (code, "there is no plan.json" in err) == (2, True), err


@pytest.mark.parametrize(
    "arguments", [("{url}",), ("lists.jsonl", "-o", "{url}"), ("lists.jsonl", "-o", "{url}", "--shards", 2)]
)
def test_no_message_shows_a_password(run, ngram_bundle, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "lists.jsonl", make_lines(3))
    given = [str(one).format(url="S3://key:secret@bucket/a") for one in arguments]
    code, out, err = run("rescore", *given, "--bundle", ngram_bundle)
    assert (code, "S3://***@bucket/…: the URL has a password" in err, "secret" in out + err) == (
        2,
        True,
        False,
    ), err


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (403, "access denied: these credentials need permission"),
        (401, "the credentials are refused: 401"),
        (500, "the storage fails: 500"),
        (404, "there is no such object"),
        (None, "the storage does not answer: Connect call failed"),
    ],
)
def test_says_what_is_wrong_with_a_web_server(rescore, status, reason):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(status)

        do_HEAD = do_GET  # noqa: N815 (the name that the library calls)

        def log_message(self, *_):
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    if status:
        thread.start()
    else:
        server.server_close()
    try:
        code, _, err = rescore(f"http://127.0.0.1:{server.server_port}/in.jsonl")
    finally:
        if status:
            server.shutdown()
            thread.join()
            server.server_close()
    assert (code, f"in.jsonl: cannot be read: {reason}" in err, err.count("\n")) == (3, True, 1), err


def test_google_storage_is_read_over_http_unless_zonal_buckets_are_asked_for(monkeypatch):
    """Before each object, gcsfs asked over gRPC for the kind of its bucket, for up to a minute."""
    gcsfs = pytest.importorskip("gcsfs")
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    assert type(open_filesystem("gs://bucket/in.jsonl")) is gcsfs.core.GCSFileSystem
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "true")
    assert type(open_filesystem("gs://bucket/in.jsonl")) is gcsfs.GCSFileSystem


TOO_LARGE = "the storage fails: it sends more than 100,000 bytes where a part was asked for"
TOO_SLOW = "the storage fails: it took more than 0.5 s for one answer"


@pytest.mark.parametrize("pause_s", [0.0, 0.1])
@pytest.mark.parametrize(
    "url",
    [
        "http://{server}/in.jsonl",
        "s3://bucket/in.jsonl",
        "s3://bucket/folder",
        "gs://bucket/in.jsonl",
        "gs://bucket/folder",
    ],
)
def test_an_answer_that_never_ends_is_bounded(rescore, bucket, monkeypatch, new_clients, url, pause_s):
    """A body without an end was read into memory until that was full; also one that lists a folder."""
    if url.startswith("gs:"):
        pytest.importorskip("gcsfs")
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200 if "in.jsonl" in self.path else 404)
            for name, value in (("Content-Length", 10**9), ("Accept-Ranges", "bytes"), ("ETag", '"a"')):
                self.send_header(name, str(value))
            self.end_headers()

        def do_GET(self):
            if self.path.startswith("/storage/v1/b/bucket/o/in.jsonl"):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"name": "in.jsonl", "bucket": "bucket", "size": "1000000000"}')
                return
            self.send_response(206 if "in.jsonl" in self.path else 200)
            self.end_headers()
            with suppress(OSError):  # the client has closed the connection
                while True:
                    self.wfile.write(b"{" * (1 if pause_s else 10_000))
                    time.sleep(pause_s)

        def log_message(self, *_):
            """Print nothing."""

    monkeypatch.setattr(storage_module, "MAX_BODY_BYTES", 100_000)
    monkeypatch.setattr(storage_module, "ANSWER_S", 0.5)
    storage_module._client_options.cache_clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    address = f"127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{address}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        code, _, err = rescore(url.format(server=address))
    finally:
        storage_module._client_options.cache_clear()
        server.shutdown()
        thread.join()
        server.server_close()
    reason = TOO_SLOW if pause_s else TOO_LARGE
    assert (code, f": cannot be read: {reason}" in err, err.count("\n")) == (3, True, 1), err


def test_says_that_access_is_denied(rescore, lists, bucket, storage):
    with storage.fault(refuse("403 Forbidden", "AccessDenied")):
        code, _, err = rescore(lists)
        assert (code, "in.jsonl: cannot be read: access denied" in err) == (3, True), err
        code, _, err = rescore(lists, "-o", f"{bucket}/out", "--shards", 2)
        assert (code, "/out: access denied" in err) == (2, True), err
    with storage.fault(refuse("403 Forbidden", "InvalidAccessKeyId", "GET")):
        code, _, err = rescore(lists, "-o", f"{bucket}/out", "--shards", 2)
        assert (code, "the credentials are refused: InvalidAccessKeyId by the test" in err) == (2, True), err


def test_says_that_there_are_no_credentials(rescore, lists, monkeypatch, new_clients):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    code, _, err = rescore(lists)
    assert (code, "no credentials: set AWS_ACCESS_KEY_ID" in err) == (3, True), err


def test_says_that_the_storage_does_not_answer(rescore, lists, monkeypatch, new_clients):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    code, _, err = rescore(lists)
    assert (code, "in.jsonl: cannot be read: the storage does not answer: Could not connect" in err) == (
        3,
        True,
    )
    code, _, err = rescore(lists, "-o", "s3://bucket/out", "--shards", 2)
    assert (code, "s3://bucket/out: the storage does not answer" in err) == (2, True), err


@pytest.mark.parametrize(
    ("package", "url", "command"),
    [
        ("fsspec", "s3://b/in.jsonl", "pip install 'rescorer[storage]'"),
        ("gcsfs", "gs://b/in", "pip install gcsfs"),
    ],
)
def test_says_which_package_is_missing(package, url, command, rescore, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = rescore(url)
    assert (code, f"object storage needs another package: {command}" in err) == (2, True), err
