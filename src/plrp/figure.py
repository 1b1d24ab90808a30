"""A matplotlib figure that notebooks show as a picture, whether or not pyplot was imported."""

from __future__ import annotations

import io

from matplotlib.figure import Figure as _Figure


class Figure(_Figure):
    """Without pyplot, which keeps every figure alive until it is closed, notebooks are not told how to show it."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()
