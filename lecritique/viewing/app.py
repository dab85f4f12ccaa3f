"""The live page over HTTP: one page, its scripts, and the data that they ask for. Nothing is ever written.

    GET /                   the page
    GET /assets/NAME        its style sheets and scripts
    GET /api/overview       runs, their states and newest figures, metrics, what cannot be read
    GET /api/rows           ?run=KEY&metric=NAME...&after=STEP&generation=N: the rows that the page does not have yet
    GET /api/trajectories   a page of the saved rollouts that pass a filter
    GET /api/trajectory     ?run=KEY&step=N&row=N: one of them with its group

Paths of the disk are never taken from a request: runs and files are looked up among those that were found. Text of data
leaves as JSON, and the page's scripts write it as text alone.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lecritique
from lecritique.analysis import page
from lecritique.analysis.tokens import sample, scales
from lecritique.core.errors import DataError
from lecritique.core.metrics import CATALOG
from lecritique.serving.web import (
    HTTPException,
    Request,
    Response,
    Route,
    Starlette,
    host_of,
    is_loopback,
    loopback_names,
)
from lecritique.viewing.live import LiveRun
from lecritique.viewing.sources import Found, find_runs
from lecritique.viewing.trajectories import ORDERS, Filter, Trajectories

_LARGEST_PAGE = 200
_SIBLING_TOKENS = 800
_LOOK_AGAIN_SECONDS = 1.0
_PROBLEMS_SHOWN = 20
# Nothing from outside, nothing inline, nobody else's frame.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_SCRIPT, _STYLE = "text/javascript", "text/css"
_MODULES = (
    "arms.js", "metric_rows.js", "overview.js", "state.js", "trajectory.js", "trajectory_list.js", "view.js",
)  # fmt: skip
_ASSETS = dict.fromkeys(("page.css", "view.css"), _STYLE)
_ASSETS |= dict.fromkeys(("tokens.js", "curves.js", *_MODULES), _SCRIPT)
_OF_ANALYSIS = frozenset({"page.css", "tokens.js"})

Handler = Callable[[Request], Mapping[str, Any]]


class BadQuery(Exception):
    """A request that cannot be answered, in one sentence, with its HTTP status."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


class ViewApp:
    """The page over the runs of one directory.

    Args:
        directory: a run, a comparison, or a directory that holds several of these.
        host: what it is served on, which decides the names that a request may use: a page of somebody else's that
            points a name of its own at this address is refused.

    Raises:
        DataError: the directory holds nothing to view.
    """

    def __init__(self, directory: Path, *, host: str = "127.0.0.1") -> None:
        self._directory = directory
        self._host = host
        self._lock = threading.Lock()
        self._found = find_runs(directory)
        self._looked = time.monotonic()
        self._live: dict[str, LiveRun] = {}
        self._trajectories = Trajectories()
        self.asgi = Starlette(
            routes=[
                Route("/", self._page, methods=["GET"]),
                Route("/assets/{name}", self._asset, methods=["GET"]),
                Route("/api/overview", self._guarded(self._overview), methods=["GET"]),
                Route("/api/rows", self._guarded(self._rows), methods=["GET"]),
                Route("/api/trajectories", self._guarded(self._listed), methods=["GET"]),
                Route("/api/trajectory", self._guarded(self._opened), methods=["GET"]),
            ],
            exception_handlers={HTTPException: self._no_such_page},  # type: ignore[dict-item]
        )

    @property
    def found(self) -> Found:
        """The runs that are there now; looked for again when the last look is a second old."""
        with self._lock:
            if time.monotonic() - self._looked > _LOOK_AGAIN_SECONDS:
                try:
                    self._found = find_runs(self._directory)
                except DataError as error:  # moved or removed while it is viewed: the page says so
                    self._found = Found(problems=[str(error)])
                self._looked = time.monotonic()
            return self._found

    # Handlers are plain functions: Starlette runs them in threads, as they read files.

    def _page(self, request: Request) -> Response:
        return self._file(request, lambda: (own_asset("view.html"), "text/html"))

    def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _ASSETS:
            return _answer({"error": "there is no such page."}, 404)
        return self._file(request, lambda: ((page.asset if name in _OF_ANALYSIS else own_asset)(name), _ASSETS[name]))

    def _file(self, request: Request, read: Callable[[], tuple[str, str]]) -> Response:
        try:
            self._require_own_name(request)
        except BadQuery as error:
            return _answer({"error": str(error)}, error.status)
        text, kind = read()
        return Response(text, media_type=kind, headers=_HEADERS)

    def _guarded(self, handler: Handler) -> Callable[[Request], Response]:
        def guarded(request: Request) -> Response:
            try:
                self._require_own_name(request)
                return _answer(handler(request))
            except BadQuery as error:
                return _answer({"error": str(error)}, error.status)
            except DataError as error:
                return _answer({"error": str(error)}, 404)

        return guarded

    def _require_own_name(self, request: Request) -> None:
        name = host_of(request)
        if name in loopback_names(self._host):
            return
        if not is_loopback(self._host) and (_is_address(name) or name == socket.gethostname().lower()):
            return
        raise BadQuery("this server does not go by that name; use its address.", 421)

    def _overview(self, request: Request) -> dict[str, Any]:
        found = self.found
        runs = [self._run(key).summary() for key in found.runs]
        names = sorted({name for run in runs for name in run.pop("metrics")}, key=_place)
        problems = [*found.problems, *(text for run in runs for text in run["problems"])]
        return {
            "title": self._directory.resolve().name or "runs",
            "directory": str(self._directory),
            "version": lecritique.__version__,
            "collections": found.titles,
            "pending": found.pending,
            "runs": runs,
            "metrics": [_described(name) for name in names],
            "problems": problems[:_PROBLEMS_SHOWN],
        }

    def _rows(self, request: Request) -> dict[str, Any]:
        names = request.query_params.getlist("metric")
        if not 0 < len(names) <= 64:
            raise BadQuery(f"'metric' is given {len(names)} times, expected 1 to 64.")
        run = self._run(_key_of(request))
        generation = (
            _whole(request, "generation", least=-1, otherwise=-1) if "generation" in request.query_params else None
        )
        return run.rows(names, after=_whole(request, "after", least=-1, otherwise=-1), generation=generation)

    def _listed(self, request: Request) -> dict[str, Any]:
        query = request.query_params
        order = query.get("order", "advantage")
        if order not in ORDERS:
            raise BadQuery(f"'order' is '{order[:40]}', expected one of {', '.join(ORDERS)}.")
        wanted = Filter(
            text=query.get("text", "")[:500],
            run=query.get("run", ""),
            collection=query.get("collection", ""),
            arm=query.get("arm", ""),
            status=query.get("status", ""),
            seed=_optional_whole(request, "seed"),
            least_step=_optional_whole(request, "least_step"),
            most_step=_optional_whole(request, "most_step"),
            least_reward=_optional_number(request, "least_reward"),
            most_reward=_optional_number(request, "most_reward"),
        )
        size = _whole(request, "size", least=1, otherwise=25)
        if size > _LARGEST_PAGE:
            raise BadQuery(f"'size' is {size}, expected at most {_LARGEST_PAGE}.")
        number = _whole(request, "page", least=0, otherwise=0)
        return self._trajectories.listed(self.found.runs.values(), wanted, order=order, page=number, size=size)

    def _opened(self, request: Request) -> dict[str, Any]:
        key = _key_of(request)
        step, row = (_whole(request, name, least=0, otherwise=None) for name in ("step", "row"))
        source = self._run(key).source
        one, group, members = self._trajectories.opened(source, step, row)
        try:
            shown = {"seed": source.seed, "arm": source.arm, "run": key, "index": row, **sample(one)}
            siblings = [
                {"seed": source.seed, "index": index, "own": index == row, **sample(each, longest=_SIBLING_TOKENS)}
                for index, each in group
            ]
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(f"row {row} of step {step} of '{key}' is not a saved rollout ({error})") from error
        # The scale is that of the trajectory and its group, so that both are coloured alike.
        return {
            "sample": shown,
            "prompt": one.prompt[:20_000],
            "siblings": siblings,
            "members": members,
            "scale": scales([shown, *siblings]),
        }

    def _run(self, key: str) -> LiveRun:
        source = self.found.runs.get(key)
        if source is None:
            raise BadQuery(f"there is no run '{key[:200]}' here.", 404)
        with self._lock:
            live = self._live.get(key)
            if live is None or live.source != source:
                live = self._live[key] = LiveRun(source)
            return live

    async def _no_such_page(self, request: Request, error: HTTPException) -> Response:
        sentence = {404: "there is no such page.", 405: "this page takes another method."}
        return _answer({"error": sentence.get(error.status_code, error.detail)}, error.status_code)


def own_asset(name: str) -> str:
    """A file of this room."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _answer(content: Mapping[str, Any], status: int = 200) -> Response:
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json", headers=_HEADERS)


def _is_address(name: str) -> bool:
    """A literal address cannot be pointed elsewhere, as a name can."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _described(name: str) -> dict[str, str]:
    spec = CATALOG.get(name)
    role, unit, text = (spec.role, spec.unit, spec.text) if spec else ("other", "", "")
    return {"name": name, "role": role, "unit": unit, "text": text}


def _place(name: str) -> tuple[int, str]:
    """Metrics in the catalog's order, others after them."""
    known = list(CATALOG)
    return (known.index(name), name) if name in CATALOG else (len(known), name)


def _key_of(request: Request) -> str:
    return str(request.query_params.get("run", ""))


def _whole(request: Request, name: str, *, least: int, otherwise: int | None) -> int:
    raw = request.query_params.get(name, "")
    if not raw and otherwise is not None:
        return otherwise
    sign, digits = (-1, raw[1:]) if raw.startswith("-") else (1, raw)
    if digits.isascii() and digits.isdecimal() and len(digits) <= 15 and sign * int(digits) >= least:
        return sign * int(digits)
    raise BadQuery(f"'{name}' is '{raw[:40]}', expected a whole number from {least}.")


def _optional_whole(request: Request, name: str) -> int | None:
    return _whole(request, name, least=-(10**15), otherwise=0) if request.query_params.get(name) else None


def _optional_number(request: Request, name: str) -> float | None:
    raw = request.query_params.get(name, "")
    if not raw:
        return None
    try:
        found = float(raw)
    except ValueError:
        found = float("nan")
    if found != found:
        raise BadQuery(f"'{name}' is '{raw[:40]}', expected a number.")
    return found
