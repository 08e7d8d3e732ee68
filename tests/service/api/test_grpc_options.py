"""gRPC channel and server options are spelled correctly; gRPC ignores unknown ones silently."""

from __future__ import annotations

import re
from pathlib import Path

from grpc._cython import cygrpc

import rescorer

OPTION = re.compile(r'\("(grpc\.[\w.]+)", ')


def test_grpc_knows_all_options():
    library = Path(cygrpc.__file__).read_bytes()
    sources = Path(rescorer.__file__).parent.rglob("*.py")
    options = {name for source in sources for name in OPTION.findall(source.read_text(encoding="utf-8"))}
    assert {"grpc.http2.min_ping_interval_without_data_ms", "grpc.keepalive_time_ms"} <= options
    assert [name for name in options if name.encode() + b"\0" not in library] == []
