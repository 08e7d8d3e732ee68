"""Build n-best lists and run the asyncio client from synchronous tests of the Python clients."""

from __future__ import annotations

from rescorer import Hypothesis, NBestList
from rescorer.client import AsyncClient


def make_list(list_id="u1", *texts, **fields) -> NBestList:
    texts = texts or ("the cat", "the mat")
    scores = tuple(-1.0 - 0.5 * i for i in range(len(texts)))
    return NBestList(list_id, tuple(map(Hypothesis, texts)), {"acoustic": scores}, **fields)


async def rescore_async(target: str, lists, options=None, **changes) -> tuple[list, list]:
    """Rescore lists with ``AsyncClient``, once as one call and once as a stream, with errors in place."""
    async with AsyncClient(target) as client:
        await client.wait_ready(10)
        answers = await client.rescore_each(lists, options, **changes)
        return answers, [answer async for answer in client.rescore_stream(lists, options, **changes)]
