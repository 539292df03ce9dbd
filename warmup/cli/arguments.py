"""Options that several commands take: one spelling and one help text for each."""

from __future__ import annotations

from typing import Final

import typer

DEVICE: Final = typer.Option(help="auto, cpu, cuda or cuda:N.")
MODEL: Final = typer.Option(help="FILE.py, FILE.py:NAME or package.module:NAME.")
SEQLENS: Final = typer.Option(
    help="Sizes of the dim seqlen: 560,1024, or 4..8192 (doubling), or 128..4096:128 (steps)."
)
DIMS: Final = typer.Option(help='Sizes of named dims: "batch=1,8;seqlen=4..8192". Repeatable.')
INPUTS: Final = typer.Option(
    "--input", help='One input, "hidden_states=[seqlen,3420]:bf16". Repeatable.'
)
DTYPE: Final = typer.Option(help="Cast model and inputs: bf16, f16, f32.")
LAUNCH: Final = typer.Option(help="How calls are launched; on a CPU one by one.")
L2_CACHE: Final = typer.Option(help="What a call finds in the last cache.")
JSON: Final = typer.Option("--json", help="Print JSON on stdout.")
