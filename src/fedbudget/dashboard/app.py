"""What the dashboard answers."""

import json
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fedbudget.dashboard.documents import Documents
from fedbudget.dashboard.shelf import Shelf
from fedbudget.dashboard.watch import Watch
from fedbudget.errors import UserError


def build(root: Path, title: str, control: bool) -> Starlette:
    """The application, without its gate. `title`: the root as the user wrote it."""
    shelf = Shelf(root, control)
    watch = Watch(shelf)
    documents = Documents(root)
    shown = static()
    start = f"fedbudget run fedavg --out {shlex.quote(str(Path(title) / 'fedavg'))}"

    async def page(request: Request) -> Response:
        return FileResponse(shown["index.html"])

    async def file(request: Request) -> Response:
        path = shown.get(request.path_params["name"])
        if path is None or path.suffix == ".html":
            return JSONResponse({"problem": "no such file"}, 404)
        return FileResponse(path, headers={"cache-control": "no-cache"})

    async def runs(request: Request) -> Response:
        rows = await watch.look()
        about = {"root": title, "start": start, "all": True, "gone": []}
        return Response(
            json.dumps({**about, "runs": [asdict(row) for row in rows.values()]}),
            media_type="application/json",
        )

    async def events(request: Request) -> Response:
        return StreamingResponse(watch.stream(), media_type="text/event-stream")

    async def document(request: Request) -> Response:
        ids = list(dict.fromkeys(request.query_params.getlist("run")))
        places = [await run_in_threadpool(shelf.place, id) for id in ids]
        body = await run_in_threadpool(documents.of, places)
        return Response(body, media_type="application/json")

    async def act(what: str, request: Request) -> Response:
        if not control:
            return JSONResponse({"problem": "stop and resume are off here (see --control)"}, 403)
        id = request.query_params.get("run", "")
        await run_in_threadpool(shelf.stop if what == "stop" else shelf.resume, id)
        row = (await watch.look()).get(id)
        return JSONResponse(asdict(row) if row else {"problem": "no such run"}, 200 if row else 404)

    async def problem(request: Request, error: Exception) -> Response:
        return JSONResponse({"problem": str(error)}, 404 if str(error) == "no such run" else 409)

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        yield
        await watch.close()

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/static/{name}", file),
            Route("/api/runs", runs),
            Route("/api/events", events),
            Route("/api/document", document),
            Route("/api/stop", partial(act, "stop"), methods=["POST"]),
            Route("/api/resume", partial(act, "resume"), methods=["POST"]),
        ],
        exception_handlers={UserError: problem},
        lifespan=life,
    )
    app.state.watch = watch
    return app


def static() -> dict[str, Path]:
    """The page's files by name: its own, the report's, and Plotly's script."""
    found: dict[str, Path] = {}
    for package in ("dashboard", "report"):
        folder = Path(str(files(f"fedbudget.{package}"))) / "static"
        if folder.is_dir():
            found |= {path.name: path for path in folder.iterdir() if path.is_file()}
    spec = find_spec("plotly")
    if spec is not None and spec.origin is not None:
        found["plotly.min.js"] = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return found
