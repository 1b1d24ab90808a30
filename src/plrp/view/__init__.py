"""The page: one explained input in a single file, to slide p and watch the noise go.

- `explanation.save("x.html")` and `plrp explain photo.jpg -o x.html` write one
- `Page`, `read_page`: write it, show it in a notebook, read its numbers back
- `Bundle`: the content of a page as plain data; `photograph_bundle`, `sequence_bundle`,
  `text_bundle`, `explanation_bundle` compute it, `maps_bundle` takes stored maps
- `mime_bundle`, `plot`: an explanation in a notebook, as a widget or frame, and as a matplotlib figure
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plrp.lazy import lazily

if TYPE_CHECKING:
    from .bundle import Bundle, BundleError
    from .notebook import mime_bundle
    from .page import Page, read_page
    from .page_kinds import (
        explanation_bundle,
        explanation_bundles,
        maps_bundle,
        photograph_bundle,
        sequence_bundle,
        text_bundle,
    )
    from .plots import plot

__all__ = [
    "Bundle", "BundleError", "Page", "explanation_bundle", "explanation_bundles", "maps_bundle", "mime_bundle",
    "photograph_bundle", "plot", "read_page", "sequence_bundle", "text_bundle",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__)
