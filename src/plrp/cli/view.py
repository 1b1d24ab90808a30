"""`plrp view`: the page served on this machine. Imports argparse only; the rest when it runs."""

from __future__ import annotations

import argparse
import ipaddress
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp.errors import UsageError, needed, usage
from plrp.settings import check_composite, read_reference

from .arguments import Shown, add_options, add_pruning, chosen, pruning_of, say, tell
from .explain import add_model, prepared, searched

if TYPE_CHECKING:
    from plrp.view.server import Host

EPILOG = """\
examples:
  plrp view --model resnet50
  plrp view --model networks.py:build --weights best.pt --port 9000
  plrp view --model cnn.pt --input sequence       DNA is pasted; models as in plrp genomics
  plrp view --model SmolLM2.gguf                  sentences are pasted; models as in plrp text

Open the printed address, and drop a photograph on the page, or paste a sequence or a sentence. Uploads stay in memory.
The address has a token, and only this machine can reach it, unless you name another --host.
"""


def port_number(text: str) -> int:
    """A port from 0 to 65535."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: a port from 0 to 65535")
    return int(text)


EXPLANATION: Shown = {
    "--composite NAME": "rules, as in plrp explain, genomics explain and text",
    "--reference NAME": "explain differences to a reference, as in plrp explain (blur:8), genomics explain "
    "(shuffled:20) and text (mask)",
    "--exemplars DIR": "for photographs: the folder that plrp exemplars wrote with this model, to show what channels "
    "stand for",
}

ADDRESS: Shown = {
    "--port PORT": ("port to serve on; 0 takes any free one", port_number, 8765),
    "--host HOST": ("address to serve on (default: 127.0.0.1, which other machines cannot reach)", str, "127.0.0.1"),
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `plrp view`."""
    parser = subparsers.add_parser(
        "view",
        help="serve a page on which photographs, sequences or sentences are explained",
        description="Serves a page on this machine: drop a photograph or paste a sequence or sentence, slide p, choose "
        "method and class, follow single channels.",
        epilog=EPILOG,
    )
    add_model(parser)
    input_help = "input of the model (default: text for a folder or .gguf file of a language model, else photographs)"
    add_options(parser, {"--input {photograph,sequence,text}": input_help})
    how = parser.add_argument_group("explanation", "the settings with which the page starts")
    add_pruning(how, default=0.05, offered=("redistribution", "unit"))
    add_options(how, EXPLANATION)
    add_options(parser.add_argument_group("address"), ADDRESS)
    parser.set_defaults(compare=None, target=None, against=None, colours="red-blue", quiet=False, beside=())
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serves until Ctrl-C."""
    from plrp.text.text_models import is_language_model

    kind = arguments.input or ("text" if is_language_model(arguments.model) else "photograph")
    if arguments.reference is not None:
        read_reference(arguments.reference, REFERENCES[kind])
    usual = COMPOSITES[kind] if arguments.reference is None else "rescale"
    arguments.composite = arguments.composite or usual
    if ":" not in arguments.composite:
        check_composite(arguments.composite, arguments.reference)
    if arguments.exemplars and kind != "photograph":
        raise UsageError("--exemplars goes with photographs: leave it out.")
    with needed("plrp view needs a web server", "view"):
        import uvicorn
    from plrp.view.server import application

    listening = bound(arguments.host, arguments.port)
    with usage():
        explainer = EXPLAINERS[kind](arguments)
    token = secrets.token_urlsafe(24)
    host, port = listening.getsockname()[:2]
    if not ipaddress.ip_address(host).is_loopback:
        say("plrp view: other machines can reach this address; whoever has its token can use it")
    shown = f"[{host}]" if ":" in host else host
    tell(f"plrp view: open http://{shown}:{port}/?token={token}  (Ctrl-C ends)")
    settings = uvicorn.Config(application(explainer, token), log_level="warning", timeout_graceful_shutdown=1)
    try:
        uvicorn.Server(settings).run(sockets=[listening])
    except KeyboardInterrupt:  # how a server ends well
        say("plrp view: ended")
    return 0


def photograph_explainer(arguments: argparse.Namespace) -> Host:
    """Photographs, by a model of `plrp explain`."""
    from plrp.view.server import Host
    from plrp.view.uploads import open_photograph
    from plrp.vision.photograph_explanation import photograph_reference

    model, (pruning, *_) = prepared(arguments)
    options = chosen(arguments, "composite", "device") | {"pruning": pruning}
    options["reference"] = photograph_reference(arguments.reference, model, None)
    options["patches"] = None if arguments.exemplars is None else searched(arguments.exemplars, model)
    return Host(lambda content, name: open_photograph(content, name, model, **options), "photograph", model.name)


def sequence_explainer(arguments: argparse.Namespace) -> Host:
    """DNA, by a model of `plrp genomics`."""
    from plrp.genomics.attribution import composite_from_text
    from plrp.genomics.network import load_model
    from plrp.view.server import Host
    from plrp.view.uploads import open_sequence

    composite_from_text(arguments.composite)
    model = load_model(arguments.model, arguments.weights).eval().to(arguments.device)
    label = Path(arguments.model).name
    options = chosen(arguments, "composite", "device", "reference")
    options |= {"pruning": pruning_of(arguments), "label": label}
    return Host(lambda content, name: open_sequence(content, name, model, **options), "sequence", label)


def text_explainer(arguments: argparse.Namespace) -> Host:
    """Sentences, by a model of `plrp text`."""
    from plrp import text
    from plrp.composites import resolve
    from plrp.view.page_kinds import TEXT_PROPORTIONS
    from plrp.view.server import Host
    from plrp.view.uploads import open_text

    loaded, label = text.load(arguments.model), Path(arguments.model).name
    composite, pruning = resolve(arguments.composite), pruning_of(arguments)
    options: dict[str, Any] = {"composite": composite, "pruning": pruning, "label": label}
    options["reference"] = arguments.reference
    return Host(lambda content, _: open_text(content, *loaded, **options), "text", label, TEXT_PROPORTIONS, 3)


COMPOSITES = {"photograph": "auto", "sequence": "epsilon-gamma", "text": "attnlrp"}
REFERENCES = {"photograph": ("blur", "grey", "zeros", "mean"), "sequence": ("shuffled", "zeros"), "text": ("mask",)}
EXPLAINERS = {"photograph": photograph_explainer, "sequence": sequence_explainer, "text": text_explainer}


def bound(host: str, port: int) -> socket.socket:
    """A listening socket at this address; refused where it is taken or is not this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # whoever opens the address at once waits, and is not refused
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{host}:{port} cannot be served ({reason}): choose another --port or --host.") from error
    return listening
