"""Print the allowed requests that cost a front end most: ``python -m tools.worst BUNDLE``."""

from __future__ import annotations

import sys

from rescorer.bundle import read_bundle
from rescorer.extensions import make_ranker
from rescorer.service.preflight import load_settings
from tools.worst.search import find_worst
from tools.worst.shapes import shapes

if __name__ == "__main__":
    ranker = make_ranker(read_bundle(sys.argv[1]))
    for cost in find_worst(shapes(), ranker, load_settings(bundle=sys.argv[1])):
        print(cost)
