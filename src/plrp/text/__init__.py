"""Text: the tokens behind the answer of a language model. Needs `pip install 'plrp[text]'`.

- explaining: `explain`; `trace` for one forward pass that is explained many times
- results: `ExplainedText`, `ExplainedSpan`, both printed, shown in a notebook and saved as coloured text
- inside: `ExplainedText.plot_layers`, `token_layers`, `head_relevance`
- reading: `load`, a folder or a GGUF file
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plrp.lazy import lazily

if TYPE_CHECKING:
    from .text_attribution import TracedText, explain, trace
    from .text_explanation import ExplainedSpan, ExplainedText
    from .text_models import load
    from .token_depths import head_relevance, token_layers
    from .tokens import Token

__all__ = [
    "ExplainedSpan", "ExplainedText", "Token", "TracedText", "explain", "head_relevance", "load", "token_layers",
    "trace",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__)
