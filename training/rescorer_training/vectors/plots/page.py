"""Render a picture as one HTML page with search and zoom, which loads nothing and needs no server.

Words are escaped, and the page's Content-Security-Policy forbids everything except its own style and script:
a word cannot run or load anything.
"""

from __future__ import annotations

import importlib.resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rescorer.evaluation.report.page import source_hash
from rescorer_training.vectors.plots.picture import COLOURS, Picture

PACKAGE = "rescorer_training.vectors.plots"
TEMPLATES = "templates"


def render_page(picture: Picture) -> str:
    """The whole page."""
    folder = importlib.resources.files(PACKAGE).joinpath(TEMPLATES)
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    environment = Environment(
        loader=PackageLoader(PACKAGE, TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    data = {
        "words": picture.words,
        "groups": picture.groups,
        "groupOf": picture.group_of,
        "colours": COLOURS,
        "points": {name.value: points.round(4).tolist() for name, points in picture.points.items()},
        "neighbours": picture.neighbours.tolist(),
        "cosines": [[round(value, 3) for value in row] for row in picture.cosines.tolist()],
    }
    policy = f"default-src 'none'; style-src {source_hash(style)}; script-src {source_hash(script)}; "
    return environment.get_template("page.html.j2").render(
        title=picture.title,
        n_words=len(picture.words),
        projections=[name.value for name in picture.points],
        data=data,
        policy=Markup(policy + "base-uri 'none'; form-action 'none'"),
        style=Markup(style),
        script=Markup(script),
    )
