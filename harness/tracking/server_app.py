"""The application that `harness ui` serves: MLflow's own, and a page that opens it well.

MLflow's pages keep how they look in the browser. In a new one they open an assistant over the
columns on the right, and take every run for one of generative AI, whose pages a click then leads to.
Neither can be set by the server or in an address, so that a page of the same origin does it before
it goes on to the address behind its `#`. Both can be changed again in MLflow's pages.

MLflow finds the module by the package's entry point (`mlflow.app`).
"""

from __future__ import annotations

from mlflow.server.fastapi_app import app
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from harness.tracking.ui import OPENING_PATH

OPENING_PAGE = """<!doctype html>
<title>MLflow</title>
<script>
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.workflowType_v1", '"machine_learning"');
location.replace("/" + location.hash);
</script>
<noscript>MLflow's pages need JavaScript.</noscript>
"""


async def open_page(request: Request) -> HTMLResponse:
    """Return the page that goes on to the address behind its `#`."""
    return HTMLResponse(OPENING_PAGE)


# First, because MLflow's own last route takes every path.
app.router.routes.insert(0, Route(OPENING_PATH, open_page))
