"""The application that `harness ui` serves: MLflow's own, and a page before it that opens it well.

MLflow's pages keep how they look in the browser. In a new one they open an assistant over the
columns on the right, and take every run for one of generative AI, whose pages a click then leads to.
Neither can be set by the server or in an address, so that a page of the same origin does it before
it goes on to the address behind its `#`, or to the experiments if there is none. Both can be changed
again in MLflow's pages.

The page is at the server's root, and MLflow's own is there with a query. MLflow finds the module by
the package's entry point (`mlflow.app`).
"""

from __future__ import annotations

from mlflow.server.fastapi_app import app as mlflow_app
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OPENING_PAGE = HTMLResponse("""<!doctype html>
<title>MLflow</title>
<script>
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.workflowType_v1", '"machine_learning"');
location.replace("/?harness" + (location.hash || "#/experiments"));
</script>
<noscript>MLflow's pages need JavaScript.</noscript>
""")


class OpenedApp:
    """Another application behind the opening page. MLflow would call a function to make one."""

    def __init__(self, inner: ASGIApp) -> None:
        self.inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for the bare root with the opening page, and pass on all others."""
        is_bare = scope["type"] == "http" and scope["path"] == "/" and not scope["query_string"]
        await (OPENING_PAGE if is_bare else self.inner)(scope, receive, send)


app = OpenedApp(mlflow_app)
