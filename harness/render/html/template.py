"""Fills the templates of pages: each page is one file without a script and without an address."""

from __future__ import annotations

from typing import Any

import jinja2
from markupsafe import Markup, escape

from harness.core.redaction import redact_text, secret_values


def fill(template: str, **values: Any) -> str:
    """Return the page that a template makes of values.

    Texts from records are escaped: a name or a log may hold markup. Secrets of this environment and
    credentials in URLs are removed, also where escaping has changed their letters.
    """
    secrets = secret_values()

    def without_secrets(value: Any) -> Any:
        """Return what a template shows; escaping would change the letters of a secret."""
        if isinstance(value, str) and not isinstance(value, Markup):
            return redact_text(value, secrets)
        return value

    loader = jinja2.PackageLoader("harness.render.html")
    templates = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=without_secrets,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = Markup(loader.get_source(templates, "report.css")[0])
    text = templates.get_template(template).render(style=style, **values)
    escaped = [str(escape(secret)) for secret in secrets]
    return redact_text(text, [*secrets, *escaped])
