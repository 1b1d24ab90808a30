"""`plrp genomics COMMAND`: from DNA sequences to motifs."""

from __future__ import annotations

from typing import Any

from . import Parser, genomics_explain, genomics_results, genomics_training


class Command(Parser):
    """Refuses unknown options itself and points to its own --help; argparse would leave that to `plrp`."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse arguments that are left over."""
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return parsed, rest


def add_parser(subparsers: Any) -> None:
    """Add `genomics` with its own sub-commands; nothing heavier than argparse is imported until one runs."""
    parser = subparsers.add_parser(
        "genomics",
        help="DNA sequences: explain, variants, motifs, logos; simulate and train",
        description="From DNA sequences to motifs. `plrp genomics COMMAND --help` shows a working example of each.",
    )
    parser.set_defaults(run=lambda arguments: (parser.print_help(), 2)[1])
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Command)
    genomics_training.add_simulate(commands)
    genomics_training.add_train(commands)
    genomics_explain.add_explain(commands)
    genomics_explain.add_variants(commands)
    genomics_explain.add_compare(commands)
    genomics_results.add_motifs(commands)
    genomics_results.add_browser(commands)
    genomics_results.add_logo(commands)
    genomics_results.add_export(commands)
