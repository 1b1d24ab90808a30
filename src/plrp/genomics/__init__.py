"""From DNA sequences to motifs: simulate or read, train, explain, draw, export.

- sequences: `encode`, `decode`, `reverse_complement`, `read_fasta`, `read_bed`, `read_intervals`, `read_npz`
- motifs: `motif`, `jaspar`, `jaspar_motifs`, `read_motifs`, `write_meme`
- data with known answers: `simulate`, `load_simulated`, `read_simdata`
- networks: `SequenceCNN`
- relevance per base: `explain_sequences`, `explain_batches`, `pool`; files of thousands: `explain_file`
- pictures: `draw_logo`, `plot_logos`, `logo_page`
- motifs found: `find_seqlets`, `find_patterns`, `match_motifs`, `match_seqlets`
- other tools: `save_modisco`, `write_seqlets`, `write_bedgraph`, `write_parquet`

Each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "sequences": (
        "Genome",
        "Interval",
        "SequenceError",
        "Sequences",
        "decode",
        "encode",
        "from_onehot",
        "read_bed",
        "read_fasta",
        "read_intervals",
        "read_npz",
        "reverse_complement",
        "write_fasta",
    ),
    "motifs": ("Motif", "jaspar", "jaspar_motifs", "motif", "read_motifs", "write_meme"),
    "simulate": ("Simulated", "load_simulated", "read_labels", "read_simdata", "simulate"),
    "network": ("History", "SequenceCNN"),
    "attribution": ("Attribution", "Hypothetical", "explain_batches", "explain_sequences", "pool"),
    "jobs": ("explain_file",),
    "logo": ("draw_logo", "logo_page", "plot_logos"),
    "seqlets": ("Seqlets", "find_patterns", "find_seqlets", "match_motifs", "match_seqlets"),
    "export": ("base_table", "save_modisco", "write_bedgraph", "write_parquet", "write_seqlets"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from .attribution import Attribution, Hypothetical, explain_batches, explain_sequences, pool
    from .export import base_table, save_modisco, write_bedgraph, write_parquet, write_seqlets
    from .jobs import explain_file
    from .logo import draw_logo, logo_page, plot_logos
    from .motifs import Motif, jaspar, jaspar_motifs, motif, read_motifs, write_meme
    from .network import History, SequenceCNN
    from .seqlets import Seqlets, find_patterns, find_seqlets, match_motifs, match_seqlets
    from .sequences import (
        Genome,
        Interval,
        SequenceError,
        Sequences,
        decode,
        encode,
        from_onehot,
        read_bed,
        read_fasta,
        read_intervals,
        read_npz,
        reverse_complement,
        write_fasta,
    )
    from .simulate import Simulated, load_simulated, read_labels, read_simdata, simulate


def __getattr__(name: str) -> Any:
    """Load the module that holds a name when the name is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'plrp.genomics' has no attribute '{name}'")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
