"""The page served on this machine: drop a photograph, and see it explained. Needs `pip install 'plrp[view,vision]'`.

A visitor's photograph stays in memory and is never written to disk; no code comes from a visitor; without the token of
the address nothing is answered. Answers are lines of JSON: how far the work is, a first bundle with few p, then the
whole one. Work ends when its visitor leaves; of several visitors, one is served at a time and the others wait.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from plrp.errors import TraceError, UnsupportedOperation
from plrp.models.loading import LoadedModel
from plrp.pruning import Pruning
from plrp.vision.explained import explain_photograph
from plrp.vision.photographs import decode_photograph

from .bundle import Bundle
from .grid import PROPORTIONS
from .page import front_page, policy_of_server
from .pictures import photograph_bundle

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LARGEST_UPLOAD = 30_000_000  # bytes
FIRST = (0.05, 0.15, 0.3, 0.5)  # the p of the bundle that comes first
TOKEN = "x-plrp-token"
_PATIENCE = 0.2  # seconds between two looks whether a waiting visitor has left

Tell = Callable[[dict[str, Any]], None]


class VisitorLeft(Exception):
    """Nobody waits for this work any more."""


@dataclass
class PhotographExplainer:
    """Explains photographs of visitors with one model, one at a time."""

    model: LoadedModel
    pruning: Pruning = field(default_factory=Pruning)
    composite: str = "epsilon-plus-flat"
    device: str = "cpu"
    proportions: tuple[float, ...] = PROPORTIONS
    targets: int = 5
    turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def work(self, content: bytes, name: str, target: str | None, tell: Tell, left: threading.Event) -> None:
        """Tell how far the work is, a first bundle and the whole one; or what is wrong with the photograph."""
        while not self.turn.acquire(timeout=_PATIENCE):
            if left.is_set():
                return
            tell({"waiting": True})
        try:
            self._explain(content, name, target, tell, left)
        except VisitorLeft:
            pass
        except (ValueError, UnsupportedOperation, TraceError) as error:  # a bad photograph, a class that is not there
            tell({"problem": str(error)})
        except Exception:
            traceback.print_exc()
            tell({"problem": "The work failed; the server's terminal says why."})
        finally:
            self.turn.release()

    def _explain(self, content: bytes, name: str, target: str | None, tell: Tell, left: threading.Event) -> None:
        def report(done: int, of: int) -> None:
            if left.is_set():
                raise VisitorLeft
            tell({"done": done, "of": of})

        photograph = decode_photograph(content, name)
        report(0, 1)
        options: dict[str, Any] = {"prunings": [self.pruning], "composite": self.composite, "device": self.device}
        explained = explain_photograph(photograph, self.model, target=target, **options)
        report(0, 1)
        for proportions, targets in ((FIRST, 1), (self.proportions, self.targets)):
            bundle = photograph_bundle(explained, proportions=proportions, targets=targets, report=report)
            tell(as_line(bundle))


def as_line(bundle: Bundle) -> dict[str, Any]:
    """A bundle as part of an answer."""
    facts, arrays = bundle.pack()
    return {"facts": json.loads(facts), "arrays": arrays}


def application(explainer: PhotographExplainer, token: str) -> Starlette:
    """The web application: `/` is the page, `/explain` takes a photograph and answers with bundles."""
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    headers = {
        "content-security-policy": policy_of_server(),
        "cache-control": "no-store",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }

    def known(given: str | None) -> bool:
        return hmac.compare_digest((given or "").encode(), token.encode())

    async def page(request: Request) -> Response:
        if not known(request.query_params.get("token")):
            text = "This address needs its token: open the one that `plrp view` printed."
            return PlainTextResponse(text, 403, headers)
        return HTMLResponse(front_page(explainer.model.name), headers=headers)

    async def explain(request: Request) -> Response:
        if not known(request.headers.get(TOKEN)):
            return JSONResponse(
                {"problem": "The token is wrong: open the address that plrp view printed."}, 403, headers
            )
        content = await bounded_body(request)
        if content is None:
            problem = f"The file has more than {LARGEST_UPLOAD // 10**6} MB: scale it down first."
            return JSONResponse({"problem": problem}, 413, headers)
        name = PurePosixPath(request.query_params.get("name", "")).name[:200] or "photograph"
        target = request.query_params.get("target") or None
        return StreamingResponse(
            answers(explainer, content, name, target), media_type="application/x-ndjson", headers=headers
        )

    routes = [Route("/", page), Route("/explain", explain, methods=["POST"])]
    return Starlette(routes=routes)


async def bounded_body(request: Request) -> bytes | None:
    """What was uploaded; None if it is too large, of which no more than that is read."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > LARGEST_UPLOAD:
            return None
    return bytes(content)


async def answers(explainer: PhotographExplainer, content: bytes, name: str, target: str | None) -> AsyncIterator[str]:
    """The lines of one answer. When the visitor leaves, this is closed, and the work stops at its next map."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    left = threading.Event()

    def tell(line: dict[str, Any] | None) -> None:
        loop.call_soon_threadsafe(lines.put_nowait, line)

    def run() -> None:
        try:
            explainer.work(content, name, target, tell, left)
        finally:
            tell(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        while (line := await lines.get()) is not None:
            yield json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"
    finally:
        left.set()
