"""The page: one explained input in a single file, to slide p and watch the noise go.

- `explanation.save("x.html")` and `plrp explain photo.jpg -o x.html` write one
- `Page`, `read_page`: write it, show it in a notebook, read its numbers back
- `Bundle`: what a page holds, as plain data; `photograph_bundle`, `explanation_bundle` compute it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plrp.lazy import lazily

if TYPE_CHECKING:
    from .bundle import Bundle, BundleError
    from .explanations import explanation_bundle
    from .page import Page, read_page
    from .pictures import photograph_bundle

__all__ = ["Bundle", "BundleError", "Page", "explanation_bundle", "photograph_bundle", "read_page"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "bundle": ("Bundle", "BundleError"),
        "explanations": ("explanation_bundle",),
        "page": ("Page", "read_page"),
        "pictures": ("photograph_bundle",),
    },
)
