"""`plrp view`: the page served on this machine. Imports argparse only; the rest when it runs."""

from __future__ import annotations

import argparse
import ipaddress
import socket
import sys
from typing import TYPE_CHECKING

from plrp.errors import UsageError, usage

from .arguments import RAW, check_composite, proportion
from .explain import METHODS, add_model, prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

EPILOG = """\
examples:
  plrp view --model resnet50
  plrp view --model networks.py:build --weights best.pt --port 9000

Open the address that is printed, and drop a photograph on the page. Photographs stay in memory; the address has a
token, and other machines cannot reach it, unless --host says otherwise.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `plrp view`."""
    parser = subparsers.add_parser(
        "view",
        help="serve a page on which photographs are dropped and explained",
        description="Serves a page on this machine: drop a photograph, slide p, choose method and class.",
        epilog=EPILOG,
        formatter_class=RAW,
    )
    add_model(parser)
    how = parser.add_argument_group("explanation")
    how.add_argument("-p", type=proportion, default=None, metavar="P", help="where the slider starts (default: 0.05)")
    how.add_argument("--method", choices=tuple(METHODS), default="lambda", help="the method it starts with")
    how.add_argument("--composite", default="auto", metavar="NAME", help="rules, as in plrp explain (default: auto)")
    where = parser.add_argument_group("address")
    where.add_argument("--port", type=_port, default=8765, help="default: 8765; 0: any that is free")
    where.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which other machines cannot reach")
    parser.set_defaults(run=run, compare=None, sparsity_gain=None, target=None)
    parser.set_defaults(unit="auto", colours="red-blue", quiet=False)


def run(arguments: argparse.Namespace) -> int:
    """Serves until Ctrl-C."""
    check_composite(arguments.composite)
    try:
        import uvicorn
    except ImportError as error:
        raise UsageError("plrp view needs a web server: pip install 'plrp[view]'") from error
    import secrets

    from plrp.view.server import PhotographExplainer, application

    listening = bound(arguments.host, arguments.port)
    with usage():
        model, (pruning, *_) = prepared(arguments)
    token = secrets.token_urlsafe(24)
    explainer = PhotographExplainer(model, pruning, arguments.composite, arguments.device)
    host, port = listening.getsockname()[:2]
    if not ipaddress.ip_address(host).is_loopback:
        print("plrp view: other machines can reach this address; whoever has its token can use it", file=sys.stderr)
    shown = f"[{host}]" if ":" in host else host
    print(f"plrp view: open http://{shown}:{port}/?token={token}  (Ctrl-C ends)", flush=True)
    settings = uvicorn.Config(application(explainer, token), log_level="warning", timeout_graceful_shutdown=1)
    serve(uvicorn.Server(settings), [listening])
    return 0


def serve(server: object, sockets: Sequence[socket.socket]) -> None:
    """Runs until Ctrl-C, which is how a server ends well."""
    try:
        server.run(sockets=list(sockets))  # type: ignore[attr-defined]
    except KeyboardInterrupt:
        print("plrp view: ended", file=sys.stderr)


def bound(host: str, port: int) -> socket.socket:
    """A listening socket at this address; refused where it is taken or is not this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()  # whoever opens the address at once waits, and is not refused
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{host}:{port} cannot be served ({reason}): choose another --port or --host.") from error
    return found


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: a port from 0 to 65535")
    return int(text)
