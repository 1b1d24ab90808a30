"""A bundle as one HTML file that needs no network: markup, style, script and data, and nothing else.

Its Content-Security-Policy forbids everything else: only our script and style run, by their hash, and no address can be
reached. Names, paths and classes of users stand in JSON alone, and the script writes them as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path

from plrp.files import new_file

from .bundle import Bundle, BundleError

_MODULES = "bundle colours drawing curves flow inside picture logo text verdict served main".split()
SCRIPTS = tuple(f"{module}.js" for module in _MODULES)
LARGEST = 10_000_000  # bytes of a page
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function|const|let|class)", re.MULTILINE)
_DATA = re.compile(r'<script type="application/json" id="facts">(.*?)</script>\s*'
                   r'<script type="text/plain" id="arrays">(.*?)</script>', re.DOTALL)  # fmt: skip


class Page:
    """A page of one explained input, or a gallery of several; notebooks show it in a frame, `save` writes it."""

    def __init__(self, bundle: Bundle | Sequence[Bundle]) -> None:
        self.bundles = (bundle,) if isinstance(bundle, Bundle) else tuple(bundle)
        if not self.bundles:
            raise ValueError("A page shows one explained input or more, and none was given.")

    @property
    def bundle(self) -> Bundle:
        """The bundle of the first input."""
        return self.bundles[0]

    def html(self) -> str:
        """The whole file."""
        facts, arrays = zip(*(bundle.pack() for bundle in self.bundles), strict=True)
        gallery = f'{{"gallery":[{",".join(facts)}]}}'
        return filled(facts[0] if len(facts) == 1 else gallery, "\n".join(arrays), policy())

    def frame(self, height: int = 880) -> str:
        """The page as an element of another one, which it can neither read nor change."""
        content = self.html().replace("&", "&amp;").replace('"', "&quot;")
        return (
            f'<iframe srcdoc="{content}" sandbox="allow-scripts" width="100%" height="{height}" '
            'style="border:1px solid #8884;border-radius:12px;resize:vertical" title="plrp" loading="lazy"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Write the page, whole or not at all; if it is too large, without paths and patches of its weaker channels."""
        if Path(path).suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"{path} should end in .html: a page is one file of HTML.")
        content = self.html().encode()
        for channels in (5, 3, 1, 0):  # paths and patches of fewer channels, where all do not fit
            if len(content) <= LARGEST:
                break
            content = Page([bundle.lighter(channels) for bundle in self.bundles]).html().encode()
        if len(content) > LARGEST:
            raise ValueError(
                f"the page would take {len(content) / 1e6:.1f} MB, more than {LARGEST // 10**6}: "
                "give fewer targets or proportions."
            )
        with new_file(path) as part:
            part.write_bytes(content)

    def _repr_html_(self) -> str:
        return self.frame()


def read_page(path: str | Path) -> Page:
    """A page that `save` wrote, with its numbers."""
    try:
        data = _DATA.search(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        data = None
    if data is None:
        raise BundleError(f"{path} is no page of plrp.")
    facts, arrays = data.groups()
    try:
        gallery = json.loads(facts).get("gallery")
    except (json.JSONDecodeError, AttributeError):
        gallery = None
    if gallery is None:
        return Page(Bundle.unpack(facts, arrays))
    pairs = zip(gallery, arrays.split("\n"), strict=True)
    return Page([Bundle.unpack(json.dumps(one), packed) for one, packed in pairs])


def front_page(model: str, kind: str = "photograph") -> str:
    """The page as a server hands it out: without a bundle, with a place for a photograph, a sequence or a text."""
    return filled(json.dumps({"served": True, "model": model, "takes": kind}), "", policy(served=True))


def filled(facts: str, arrays: str, policy: str) -> str:
    """The page with its parts."""
    parts = {"policy": policy, "style": _front("style.css"), "script": joined_script(), "arrays": arrays}
    parts["facts"] = facts.replace("<", "\\u003c")  # no `</script>` and no `<!--` in data
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _front("page.html"))


@lru_cache(maxsize=1)
def joined_script() -> str:
    """All modules as one script: a page opened from disk may not import others.

    The ES modules import only each other; in one script, in this order, they need no import and export lines.
    """
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", _front(name))) for name in SCRIPTS)


def policy(*, served: bool = False) -> str:
    """The Content-Security-Policy: this script, this style, pictures within the page; no address but its own server."""
    texts = (joined_script(), _front("style.css"))
    script, style = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    server = "; connect-src 'self'" if served else ""
    return (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data: blob:; "
        f"base-uri 'none'; form-action 'none'{server}"
    )


@lru_cache
def _front(name: str) -> str:
    return (resources.files(__package__) / "front" / name).read_text(encoding="utf-8")
