"""Print the allowed requests that cost a front end most: ``python -m tools.worst BUNDLE``."""

from __future__ import annotations

import sys

from rescorer.bundle import read_bundle
from rescorer.candidates.pronunciation import load_pronouncer
from rescorer.extensions import make_ranker
from rescorer.service.preflight import load_settings
from tools.worst.search import find_slowest, find_worst
from tools.worst.shapes import searches, shapes

if __name__ == "__main__":
    ranker, settings = make_ranker(read_bundle(sys.argv[1])), load_settings(bundle=sys.argv[1])
    load_pronouncer(None).learn_letters()  # once a process, not for every request
    for cost in (*find_worst(shapes(), ranker, settings), *find_slowest(searches(), ranker, settings)):
        print(cost)
