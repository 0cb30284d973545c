"""Fills the templates of pages: each page is one file without a script and without an address."""

from __future__ import annotations

from typing import Any

import jinja2
from markupsafe import Markup


def fill(template: str, **values: Any) -> str:
    """Return the page that a template makes of values.

    Texts from records are escaped: a name or a log may hold markup.
    """
    loader = jinja2.PackageLoader("harness.render.html")
    templates = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = Markup(loader.get_source(templates, "report.css")[0])
    return templates.get_template(template).render(style=style, **values)
