"""An explanation in a notebook: its figure at once; the page, when it is asked for, with an invisible widget behind it.

The page is plain HTML, so that it also works in an exported or reopened notebook; there it has no widget, and shows
only the channels that it holds. Where the widget runs, it tells the page, and any channel can be followed.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import secrets
from typing import Any

from plrp.explanation import Explanation

from .page import Page
from .page_kinds import explanation_bundles
from .plots import plot
from .server import REFUSED, wanted_path
from .uploads import Upload

PROPORTIONS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8)
SAMPLES = 4  # of a batch, in a gallery
VIEW = "application/vnd.jupyter.widget-view+json"
SCRIPT = """
function render({ model, el }) {
  el.hidden = true;
  const session = model.get("session"), waiting = new Map();
  const here = { plrp: "here", session };
  const listen = ({ source, data }) => {
    if (!source || !data || data.session !== session) return;
    if (data.plrp === "hello") source.postMessage(here, "*");
    if (data.plrp !== "ask") return;
    waiting.set(data.id, source);
    model.send(data);
  };
  const answer = (content) => { waiting.get(content.id)?.postMessage(content, "*"); waiting.delete(content.id); };
  window.addEventListener("message", listen);
  model.on("msg:custom", answer);
  for (const frame of document.querySelectorAll('iframe[title="plrp"]')) frame.contentWindow.postMessage(here, "*");
  return () => { window.removeEventListener("message", listen); model.off("msg:custom", answer); };
}
export default { render };
"""
"""Passes the questions of the page to Python, and the answers back to the frame of the page."""


class Live:
    """A page whose clicks are answered by this process."""

    def __init__(self, explanation: Explanation, samples: list[int] | None = None, **options: Any) -> None:
        chosen = list(range(min(SAMPLES, len(explanation.score)))) if samples is None else samples
        usual = {"proportions": PROPORTIONS, "targets": 2, "inside": "graph", "show_progress": None}
        options = {**usual, **options}
        bundles = explanation_bundles(explanation, chosen, **options)
        self.session = secrets.token_urlsafe(12)  # one of several pages in a notebook
        self.samples: dict[str, Upload] = {}

        def score(number: int | None) -> Any:
            return explanation.target if number is None else number  # a target that is no class has no number

        for sample, bundle in zip(chosen, bundles, strict=True):
            trace, place = explanation.trace_sample(sample)
            own = trace.batch == 1 and place == 0
            bundle.facts.update(host=self.session if own else None, session=str(sample))
            if own:  # a trace of several samples would explain all of them for one click
                self.samples[str(sample)] = Upload(trace, explanation.composite, explanation.pruning, score=score)
        self.page = Page(bundles)

    def answer(self, asked: Any) -> dict[str, Any]:
        """The answer to one question of the page."""
        reply = {"plrp": "answer", "session": self.session, "id": asked.get("id") if isinstance(asked, dict) else None}
        try:
            test = asked["what"] == "test"
            wanted = wanted_path(asked["wanted"], test)
            upload = self.samples[wanted.pop("session")]
            return {**reply, "answer": upload.test(**wanted) if test else upload.path(**wanted)}
        except (*REFUSED, KeyError) as error:
            return {**reply, "problem": str(error)}

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The page in a frame, with a widget that answers it where anywidget is installed."""
        if importlib.util.find_spec("anywidget") is not None:
            from IPython import get_ipython
            from IPython.display import display

            mime = widget(self)._repr_mimebundle_()
            view = (mime[0] if isinstance(mime, tuple) else mime or {}).get(VIEW)
            if get_ipython() is not None and view is not None:  # an output without words; nothing outside a notebook
                display({VIEW: view, "text/plain": ""}, raw=True)
        return {"text/plain": repr(self.page), "text/html": self.page.frame()}, {}


def widget(live: Live) -> Any:
    """The widget that answers the page; needs anywidget (`pip install 'plrp[notebook]'`)."""
    import anywidget
    import traitlets

    class PageWidget(anywidget.AnyWidget):
        _esm = SCRIPT
        session = traitlets.Unicode().tag(sync=True)

    made = PageWidget(session=live.session)
    made.on_msg(lambda this, content, buffers: this.send(live.answer(content)))
    return made


def mime_bundle(explanation: Explanation) -> tuple[dict[str, Any], dict[str, Any]]:
    """How notebooks show an explanation: its figure, which takes no time, and how to get the page."""
    content = io.BytesIO()
    plot(explanation).savefig(content, format="png", dpi=110)
    picture = base64.b64encode(content.getvalue()).decode()
    hint = "<p><code>explanation.page()</code> shows it with p, classes and channels to move.</p>"
    html = f'<img src="data:image/png;base64,{picture}" alt="relevance">{hint}'
    return {"text/plain": repr(explanation), "text/html": html}, {}
