"""Lists for the tests of the Python clients, and the asyncio client asked from code that is not."""

from __future__ import annotations

from rescorer import Hypothesis, NBestList
from rescorer.client import AsyncClient


def nbest(list_id="u1", *texts, **fields) -> NBestList:
    texts = texts or ("the cat", "the mat")
    scores = tuple(-1.0 - 0.5 * i for i in range(len(texts)))
    return NBestList(list_id, tuple(map(Hypothesis, texts)), {"acoustic": scores}, **fields)


async def asked(target: str, lists, weights=None, merge=False) -> tuple[list, list]:
    async with AsyncClient(target) as client:
        await client.wait_ready(10)
        whole = await client.rescore(lists, weights, merge=merge)
        return whole, [each async for each in client.rescore_stream(lists, weights, merge=merge)]
