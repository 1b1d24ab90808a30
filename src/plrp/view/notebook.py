"""An explanation in a notebook: the page as a widget that computes what is clicked, or as a frame."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from plrp.explanation import Explanation

from .explanations import explanation_bundles
from .opened import Opened
from .page import Page
from .server import REFUSED, wanted_path

PROPORTIONS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8)
SAMPLES = 4  # of a batch, in a gallery
SCRIPT = """
function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = "plrp";
  frame.style = "width:100%;height:" + model.get("height") + "px;border:0";
  frame.srcdoc = model.get("page");
  const listen = (event) => {
    if (event.source === frame.contentWindow && event.data && event.data.plrp === "ask") model.send(event.data);
  };
  const answer = (content) => frame.contentWindow && frame.contentWindow.postMessage(content, "*");
  window.addEventListener("message", listen);
  model.on("msg:custom", answer);
  el.append(frame);
  return () => { window.removeEventListener("message", listen); model.off("msg:custom", answer); };
}
export default { render };
"""


@dataclass
class OpenedSample(Opened):
    """A sample of an explanation in this notebook."""

    target: Any = None  # one that is no class

    def score(self, number: int | None) -> Any:
        """See `Opened`."""
        return self.target if number is None else number


class Live:
    """A page whose clicks are answered by this process."""

    def __init__(self, explanation: Explanation, samples: list[int] | None = None, **options: Any) -> None:
        count = min(SAMPLES, len(explanation.score))
        chosen = list(range(count)) if samples is None else samples
        options = {"proportions": PROPORTIONS, "targets": 2, "inside": "graph", **options}
        bundles = explanation_bundles(explanation, chosen, **options)
        self.opened: dict[str, OpenedSample] = {}
        for sample, bundle in zip(chosen, bundles, strict=True):
            trace, place = explanation.trace_sample(sample)
            own = trace.batch == 1 and place == 0
            bundle.facts.update(host=own, session=str(sample))
            if own:  # else the trace holds others, too, which a click need not explain
                self.opened[str(sample)] = OpenedSample(
                    trace, explanation.composite, explanation.pruning, target=explanation.target
                )
        self.page = Page(bundles)

    def answer(self, asked: Any) -> dict[str, Any]:
        """The answer to one question of the page."""
        reply = {"plrp": "answer", "id": asked.get("id") if isinstance(asked, dict) else None}
        try:
            wanted = wanted_path(asked["wanted"])
            return {**reply, "answer": self.opened[wanted.pop("session")].path(**wanted)}
        except (*REFUSED, KeyError) as error:
            return {**reply, "problem": str(error)}


def widget(live: Live, height: int = 860) -> Any:
    """The page as a widget; needs anywidget (`pip install 'plrp[notebook]'`)."""
    import anywidget
    import traitlets

    class PageWidget(anywidget.AnyWidget):
        _esm = SCRIPT
        page = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int().tag(sync=True)

    made = PageWidget(page=live.page.html(), height=height)
    made.on_msg(lambda this, content, buffers: this.send(live.answer(content)))
    return made


def mime_bundle(explanation: Explanation) -> tuple[dict[str, Any], dict[str, Any]]:
    """How notebooks show an explanation: as a widget, or as a page that stands by itself."""
    live = Live(explanation, show_progress=None)
    shown: dict[str, Any] = {}
    if importlib.util.find_spec("anywidget") is not None:
        found = widget(live)._repr_mimebundle_()
        shown = dict(found[0] if isinstance(found, tuple) else found or {})
    for bundle in live.page.bundles:  # nobody answers a page that stands by itself
        bundle.facts["host"] = False
    return {**shown, "text/plain": repr(explanation), "text/html": live.page.frame()}, {}
