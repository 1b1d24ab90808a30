"""The page served on this machine: drop a photograph, paste a sequence or a text, and see it explained.

Uploads stay in memory and are never written to disk; no code comes from a visitor; requests without the token of the
address are refused. Answers are lines of JSON: progress, a first bundle with few p, then the whole bundle. Work ends
when its visitor leaves; visitors are served one at a time while the others wait. The traces of the last uploads are
cached, so that another target or a click on a channel needs no new forward pass.
Needs `pip install 'plrp[view]'`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from plrp.errors import TraceError, UnsupportedOperation
from plrp.spelling import printable

from .page import front_page, policy
from .page_data import PROPORTIONS, TARGETS, PageSettings
from .uploads import Kind, Upload

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LARGEST_UPLOAD = 30_000_000  # bytes
LARGEST_INDEX = 2**31  # of a channel or a class
CACHED = 6  # uploads whose trace is cached
FIRST = (0.05, 0.15, 0.3, 0.5)  # the p of the bundle that comes first
TOKEN = "x-plrp-token"
WRONG_TOKEN = "The token is wrong: open the address that plrp view printed."
_PATIENCE = 0.2  # seconds between two looks whether a waiting visitor has left
REFUSED = (ValueError, TypeError, UnsupportedOperation, TraceError)  # errors whose sentence the visitor reads

Tell = Callable[[dict[str, Any]], None]


class VisitorLeft(Exception):
    """Nobody waits for this work any more."""


@dataclass
class Host:
    """Explains the uploads of visitors with one model, one at a time.

    open: from the bytes and the name of an input to an `Upload`, which has run through the model.
    """

    open: Callable[[bytes, str], Upload]
    kind: Kind
    name: str
    proportions: tuple[float, ...] = PROPORTIONS
    targets: int = TARGETS
    turn: threading.Lock = field(default_factory=threading.Lock, repr=False)
    clicks: int = 0  # clicks that wait for their path
    uploads: OrderedDict[str, Upload] = field(default_factory=OrderedDict, repr=False)

    def work(
        self,
        content: bytes,
        name: str,
        target: str | None,
        tell: Tell,
        left: threading.Event,
        session: str | None = None,
    ) -> None:
        """Tell the progress, a first bundle and the whole bundle; or the problem of the input.

        session: names a cached upload, in place of its content.
        """

        def report(done: int, of: int, what: str = "maps") -> None:
            self._make_way()
            if left.is_set():
                raise VisitorLeft
            tell({"done": done, "of": of, "what": what})

        while not self.turn.acquire(timeout=_PATIENCE):
            if left.is_set():
                return
            tell({"waiting": True})
        try:
            report(0, 1)
            upload = self.open(content, name) if session is None else self._cached(session)
            session = session or secrets.token_urlsafe(12)
            self.uploads[session] = upload
            self.uploads.move_to_end(session)
            while len(self.uploads) > CACHED:
                self.uploads.popitem(last=False)
            report(0, 1)
            first, whole = (FIRST, 1), (self.proportions, self.targets)
            for settings in (PageSettings(*first, "nothing", report), PageSettings(*whole, "graph", report)):
                bundle = upload.bundle(target, settings)
                facts, arrays = bundle.pack()
                tell({"facts": {**json.loads(facts), "session": session}, "arrays": arrays})
            for number, patches in upload.exemplars(bundle, partial(report, what="patches of a layer")):
                tell({"exemplars": patches, "layer": number})
        except VisitorLeft:
            pass
        except REFUSED as error:  # a bad photograph, a class that is not there
            tell({"problem": str(error)})
        except Exception:
            print(printable(traceback.format_exc()), file=sys.stderr)
            tell({"problem": "The work failed; the server's terminal says why."})
        finally:
            self.turn.release()

    def _cached(self, session: str) -> Upload:
        if session not in self.uploads:
            raise ValueError("This input is no longer kept: give it once more.")
        return self.uploads[session]

    def _make_way(self) -> None:
        """Let clicks go first: a path is short work."""
        if self.clicks:
            self.turn.release()
            try:
                while self.clicks:
                    time.sleep(0.005)
            finally:
                self.turn.acquire()

    def path(self, session: str, test: bool = False, **wanted: Any) -> dict[str, Any]:
        """The relevance through one channel of a cached upload, or the test of a map; goes before long work."""
        self.clicks += 1
        try:
            with self.turn:
                upload = self._cached(session)
                return upload.test(**wanted) if test else upload.path(**wanted)
        except REFUSED as error:
            return {"problem": str(error)}
        finally:
            self.clicks -= 1


def wanted_path(given: Any, test: bool = False) -> dict[str, Any]:
    """A question for a path, or for a test, as it came over the wire, checked field by field."""
    kinds = {"session": str, "layer": str, "channel": int, "number": (int, type(None)), "method": str}
    kinds = {name: kind for name, kind in kinds.items() if not test or name not in ("layer", "channel")}
    if not isinstance(given, dict) or set(given) != {*kinds, "p"}:
        raise ValueError(f"A {'test' if test else 'path'} has {', '.join(kinds)} and p.")
    for name, kind in kinds.items():
        if not isinstance(given[name], kind) or isinstance(given[name], bool):  # type: ignore[arg-type]
            raise ValueError(f"{name} does not come from the page.")
    for name in ("channel", "number"):
        if given.get(name) is not None and not 0 <= given[name] < LARGEST_INDEX:
            raise ValueError(f"{name} is a whole number from 0 to {LARGEST_INDEX - 1}.")
    json.dumps(given, ensure_ascii=False).encode()  # half characters, which no answer can repeat, are a ValueError
    if given["method"] not in ("lambda", "M", "M-sign"):
        raise ValueError("method is lambda, M or M-sign.")
    if given["p"] is not None and not (isinstance(given["p"], float | int) and 0 <= given["p"] < 1):
        raise ValueError("p is a share of mass, 0 ≤ p < 1.")
    return dict(given)


def application(host: Host, token: str) -> Starlette:
    """The web application: `/` is the page, `/explain` answers inputs with bundles, `/channel` a click with
    a path, `/test` another with the network's verdict on a map."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import ClientDisconnect
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    headers = {
        "content-security-policy": policy(served=True),
        "cache-control": "no-store",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }

    def known(given: str | None) -> bool:
        return hmac.compare_digest((given or "").encode(), token.encode())

    def problem(text: str, status: int) -> Response:
        return JSONResponse({"problem": text}, status, headers)

    async def page(request: Request) -> Response:
        if not known(request.query_params.get("token")):
            text = "This address needs its token: open the one that `plrp view` printed."
            return PlainTextResponse(text, 403, headers)
        return HTMLResponse(front_page(host.name, host.kind), headers=headers)

    async def explain(request: Request) -> Response:
        if not known(request.headers.get(TOKEN)):
            return problem(WRONG_TOKEN, 403)
        content = await bounded_body(request, LARGEST_UPLOAD)
        if content is None:
            return problem(f"The file has more than {LARGEST_UPLOAD // 10**6} MB: scale it down first.", 413)
        name = PurePosixPath(request.query_params.get("name", "")).name[:200] or host.kind
        target, session = (request.query_params.get(key) or None for key in ("target", "session"))
        lines = answers(host, content, name, target, session)
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)

    async def channel(request: Request, test: bool = False) -> Response:
        if not known(request.headers.get(TOKEN)):
            return problem(WRONG_TOKEN, 403)
        content = await bounded_body(request, 10_000)
        try:
            wanted = wanted_path(json.loads(content or b""), test)
        except ValueError as error:  # no JSON, too
            return problem(str(error), 400)
        except RecursionError:
            return problem("A path has no brackets within brackets.", 400)
        return JSONResponse(await run_in_threadpool(lambda: host.path(test=test, **wanted)), headers=headers)

    async def tested(request: Request) -> Response:
        return await channel(request, test=True)

    async def gone(request: Request, error: Exception) -> Response:
        return problem("The visitor left before the end of the request.", 400)  # nobody reads it

    routes = [
        Route("/", page),
        Route("/explain", explain, methods=["POST"]),
        Route("/channel", channel, methods=["POST"]),
        Route("/test", tested, methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={ClientDisconnect: gone})


async def bounded_body(request: Request, most: int) -> bytes | None:
    """The body of a request; None if it has more than `most` bytes, and no more are read."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > most:
            return None
    return bytes(content)


async def answers(host: Host, content: bytes, name: str, target: str | None, session: str | None) -> AsyncIterator[str]:
    """The lines of one answer. When the visitor leaves, the generator is closed, and the work stops at its next map."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    left = threading.Event()

    def tell(line: dict[str, Any] | None) -> None:
        with suppress(RuntimeError):  # the server has ended, and its loop with it
            loop.call_soon_threadsafe(lines.put_nowait, line)

    def run() -> None:
        try:
            host.work(content, name, target, tell, left, session)
        finally:
            tell(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        while (line := await lines.get()) is not None:
            yield json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"
    finally:
        left.set()
