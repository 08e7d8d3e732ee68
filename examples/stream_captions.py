"""Rescore captions while people speak: partial hypotheses first, whole utterances with what came before.

    rescorer serve --bundle models/starter/1 &
    python examples/stream_captions.py --server 127.0.0.1:50051
    python my_recogniser.py | python examples/stream_captions.py - --server 127.0.0.1:50051

Reads one JSON object per line, as a streaming recogniser can print them: ``{"partial": ["the see was"]}`` for
words that are still changing, and ``{"final": [["the see was calm", -4.0], ["the sea was calm", -4.2]]}``
for a whole utterance, with a log-probability per hypothesis. Partial hypotheses are scored without the end of
the sentence. Final ones are sent with the utterances before them as ``previous``, so that any server of a
fleet can answer any request. Without a file, two utterances of a conversation are rescored.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any

from rescorer import Hypothesis, NBestList, Utterance, Weights
from rescorer.client import Client

CONVERSATION = (
    {"partial": ["the ship lay at", "the ship laid at"]},
    {"final": [["the ship laid at anchor", -4.0], ["the ship lay at anchor", -4.5]]},
    {"partial": ["and the see", "and the sea"]},
    {"final": [["and the see was calm", -5.0], ["and the sea was calm", -5.25]]},
)
"""What a recogniser might print for two utterances."""
MAX_PREVIOUS = 10
"""Number of utterances that are sent as context."""
PARTIAL = Weights("partial")
"""While words still change, the language model alone decides: their scores are not comparable yet."""
FINAL = Weights("final", streams={"first_pass": 1.0})


def read_events(name: str) -> Iterable[dict[str, Any]]:
    """Yield the events of a file, or of standard input as they come; without a name, those of the example."""
    if not name:
        yield from CONVERSATION
        return
    with sys.stdin if name == "-" else open(name, encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def rescore_events(client: Client, events: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str]]:
    """Yield the kind of each event and its best text."""
    previous: deque[Utterance] = deque(maxlen=MAX_PREVIOUS)
    for number, event in enumerate(events):
        if "partial" in event:
            kind, weights, streams = "partial", PARTIAL, {}
            hypotheses = tuple(Hypothesis(text, partial=True) for text in event["partial"])
        else:
            kind, weights = "final", FINAL
            texts, scores = zip(*event["final"], strict=True)
            hypotheses, streams = tuple(map(Hypothesis, texts)), {"first_pass": scores}
        nbest = NBestList(str(number), hypotheses, streams, previous=tuple(previous))
        best = client.rescore(nbest, weights, timeout_s=5)[0].best
        yield kind, best.text
        if kind == "final":
            previous.append(Utterance(best.text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("events", nargs="?", default="", help="file of events, or - for standard input")
    parser.add_argument("--server", default="127.0.0.1:50051", help="host:port, or several with commas")
    options = parser.parse_args()
    with Client(options.server) as client:
        client.wait_ready()
        for kind, text in rescore_events(client, read_events(options.events)):
            print(f"{kind:<8} {text}", flush=True)


if __name__ == "__main__":
    main()
