"""Requests and replies between a server and its workers."""

from __future__ import annotations

import asyncio
import socket

from rescorer.service.workers.peers import CANCEL, SCORE, answer_requests, pack, read_frame


def test_a_request_to_score_that_is_cancelled_before_it_begins_has_a_reply():
    async def send_both_at_once() -> dict[str, object]:
        one, other = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=one)
        peer_reader, peer_writer = await asyncio.open_connection(sock=other)

        async def perform(frame):
            await asyncio.sleep(60)

        writer.write(pack({"do": SCORE, "id": 1}, {}) + pack({"do": CANCEL, "id": 1}, {}))
        answering = asyncio.create_task(answer_requests(peer_reader, peer_writer, perform))
        reply = await asyncio.wait_for(read_frame(reader), 20)
        writer.close()
        await answering
        peer_writer.close()
        return reply.header

    assert asyncio.run(send_both_at_once())["id"] == 1
