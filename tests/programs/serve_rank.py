"""One rank of several: serve a small model from a table, and print what this rank did.

    torchrun --nproc-per-node 2 serve_rank.py TABLE MODELS SEQLEN

The process group exists before the table is installed, so that a collective could be started; its
sequence number counts them. ``TABLE_OF_RANK_1`` names another copy of the table for rank 1.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

import warmup


def collectives() -> int:
    number: int = dist.group.WORLD._get_sequence_number_for_group()
    return number


def main() -> None:
    table, models, seqlen = sys.argv[1:]
    sys.path.insert(0, models)
    from plain_script import Net

    rank = os.environ["RANK"]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    before = collectives()
    own = os.environ.get(f"TABLE_OF_RANK_{rank}", table)
    with warmup.install(own, freezing=True) as handle, torch.no_grad():
        torch.compile(Net().eval(), dynamic=False)(torch.randn(int(seqlen), 32))
        report = handle.report()
    during = collectives() - before
    dist.barrier()
    result = {
        "rank": rank,
        "digest": handle.digest,
        "hits": dict(report.hits),
        "misses": dict(report.misses),
        "collectives": during,
        "control": collectives() - before,
    }
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
