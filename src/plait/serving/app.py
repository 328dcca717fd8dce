"""The dashboard's addresses and their handlers. Addresses are permanent: a record is found by its key as long as it is
in the store."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.records.record import Record, flat
from plait.records.store import Store
from plait.reporting.models import sheet_details
from plait.reporting.page import note, tag
from plait.reporting.views import VIEWS
from plait.serving.guard import Application, Guard
from plait.serving.lists import record_address
from plait.serving.pages import Pages, asset
from plait.serving.record_index import RecordIndex

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

YEAR = 31_536_000  # seconds
#: The offline page has inline style and script: served from here it may run them, but still load nothing.
OFFLINE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "sandbox allow-scripts allow-downloads"
)
INSTALL = "`plait serve` needs starlette and uvicorn: pip install 'plait[serve]'."


def application(store: Store, runs: Path, *, hosts: tuple[str, ...] | None, token: str | None = None) -> Application:
    """The whole dashboard as an ASGI application. `hosts`: allowed names in the Host header; None: any, but then a
    token is required."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ModuleNotFoundError:
        raise UserError(INSTALL) from None

    index = RecordIndex(store)
    threading.Thread(target=_prepare, args=(index,), daemon=True, name="plait record index").start()
    handlers = Handlers(Pages(store, runs, index))
    routes = [
        Route(path, handlers.with_error_pages(handler))
        for path, handler in {
            "/": handlers.overview,
            "/records": handlers.records,
            "/kind/{kind:path}": handlers.kind,
            "/record/{key}": handlers.record,
            "/record/{key}/record.json": handlers.as_json,
            "/record/{key}/numbers.csv": handlers.as_csv,
            "/record/{key}/report.html": handlers.as_report,
            "/record/{key}/figure/{name}.svg": handlers.figure,
            "/record/{key}/model/{place}.json": handlers.model,
            "/beside": handlers.beside,
            "/runs": handlers.runs,
            "/run/{name}": handlers.run,
            "/live/overview": handlers.live_overview,
            "/live/runs": handlers.live_runs,
            "/live/run/{name}": handlers.live_run,
            "/static/{name}": handlers.static,
        }.items()
    ]
    app = Starlette(routes=routes, exception_handlers={404: handlers.not_found, 405: handlers.not_found})
    return Guard(app, hosts, token)


def _prepare(index: RecordIndex) -> None:
    """In the background, so that the first pages are fast: import the code of every view, then read the list of records
    and follow what is added to it."""
    for kind in VIEWS.lines:
        with suppress(UserError, ImportError):  # a view with missing packages shows the error on its own page
            VIEWS.load(kind)
    index.follow()


class Handlers:
    """One handler per address. They are not `async`, so starlette runs each in a thread."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages

    def with_error_pages(self, handler: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """The handler, with errors of the store or a view as a page that shows the message."""

        def handle(request: Request) -> Response:
            try:
                with self.pages.index.waiting():
                    return handler(request)
            except UserError as wrong:
                return self._error_page(str(wrong), 404 if str(wrong).startswith("no records") else 503)

        return handle

    def _html(self, text: str, status: int = 200) -> Response:
        from starlette.responses import HTMLResponse

        return HTMLResponse(text, status, headers={"cache-control": "no-store"})

    def _error_page(self, message: str, status: int) -> Response:
        head = tag("header", tag("h1", "Not found" if status == 404 else "Error"))
        return self._html(self.pages.page(str(status), head, note(message)), status)

    def not_found(self, request: Request, wrong: Exception) -> Response:
        return self._error_page("No record, run or page has this address.", 404)

    def _record(self, request: Request) -> Record | None:
        return self.pages.get(request.path_params["key"])

    # ---- pages

    def overview(self, request: Request) -> Response:
        return self._html(self.pages.overview())

    def records(self, request: Request) -> Response:
        return self._html(self.pages.records(dict(request.query_params)))

    def kind(self, request: Request) -> Response:
        return self._html(self.pages.kind(request.path_params["kind"]))

    def record(self, request: Request) -> Response:
        from starlette.responses import RedirectResponse

        record = self._record(request)
        if record is None:
            return self._error_page("No record has this key, or several keys begin with it.", 404)
        if record.key != request.path_params["key"]:
            return RedirectResponse(record_address(record.key), 303)
        return self._html(self.pages.record(record))

    def beside(self, request: Request) -> Response:
        return self._html(self.pages.beside(request.query_params.getlist("key")))

    def runs(self, request: Request) -> Response:
        return self._html(self.pages.run_list())

    def run(self, request: Request) -> Response:
        text = self.pages.run(request.path_params["name"])
        return self._html(text) if text is not None else self._error_page("No training has this name.", 404)

    def live_overview(self, request: Request) -> Response:
        return self._html(self.pages.live_overview())

    def live_runs(self, request: Request) -> Response:
        return self._html(self.pages.live_runs())

    def live_run(self, request: Request) -> Response:
        text = self.pages.live_run(request.path_params["name"])
        return self._html("" if text is None else text, 404 if text is None else 200)

    # ---- files

    def static(self, request: Request) -> Response:
        """The style and the script, which are in memory: the address never becomes a file path."""
        from starlette.responses import Response

        kinds = {"page.css": "text/css", "page.js": "text/javascript"}
        name = request.path_params["name"]
        if name not in kinds:
            return self._error_page("No such file.", 404)
        headers = {"cache-control": f"max-age={YEAR}, immutable"}
        return Response(asset(name)[0], media_type=kinds[name], headers=headers)

    def as_json(self, request: Request) -> Response:
        record = self._record(request)
        if record is None:
            return self._error_page("No record has this key.", 404)
        return _download(json.dumps(record.document(), indent=1), "application/json", f"record-{record.key[:10]}.json")

    def as_csv(self, request: Request) -> Response:
        record = self._record(request)
        if record is None:
            return self._error_page("No record has this key.", 404)
        return _download(_csv(self.pages.view(record).rows), "text/csv", f"record-{record.key[:10]}.csv")

    def as_report(self, request: Request) -> Response:
        from plait.reporting.citation import references_of
        from plait.reporting.records_page import records_page
        from plait.reporting.views import Context

        record = self._record(request)
        if record is None:
            return self._error_page("No record has this key.", 404)
        context = Context(self.pages.context.get)
        text = records_page([record], self.pages.store.name, references_of([record]), named=True, context=context)
        return _download(
            text, "text/html", f"report-{record.key[:10]}.html", {"content-security-policy": OFFLINE_POLICY}
        )

    def model(self, request: Request) -> Response:
        """Cost and drawing of one model of a page, loaded when the reader opens it."""
        from starlette.responses import JSONResponse

        record, place = self._record(request), request.path_params["place"]
        sheets = self.pages.view(record).sheets if record is not None else ()
        if not (place.isascii() and place.isdecimal() and len(place) < 6 and int(place) < len(sheets)):
            return self._error_page("No such model.", 404)
        return JSONResponse(sheet_details(sheets[int(place)]))

    def figure(self, request: Request) -> Response:
        record = self._record(request)
        draw = None if record is None else self.pages.view(record).figures.get(request.path_params["name"])
        if record is None or draw is None:
            return self._error_page("No such figure.", 404)
        return _download(draw(), "image/svg+xml", f"{request.path_params['name']}-{record.key[:10]}.svg")


def _download(text: str, kind: str, name: str, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response

    plain = "".join(c if c.isalnum() or c in "-." else "-" for c in name)
    headers = {"content-disposition": f'attachment; filename="{plain}"', "cache-control": "no-store", **(headers or {})}
    return Response(text, media_type=kind, headers=headers)


def _csv(rows: Any) -> str:
    flats = [flat(dict(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flats for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names)
    writer.writeheader()
    writer.writerows(flats)
    return out.getvalue()
