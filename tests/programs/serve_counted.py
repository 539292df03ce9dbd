"""A server's metrics before a table, with it, and after a miss: one text of each, in JSON.

python serve_counted.py TABLE
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from prometheus_client import CollectorRegistry, generate_latest

import warmup
from warmup.metrics import PrometheusCollector

sys.path.insert(0, str(Path(__file__).parent / "models"))

from plain_script import Net

os.environ["WARMUP_QUIET"] = "1"
registry = CollectorRegistry()
registry.register(PrometheusCollector())
scrapes = [generate_latest(registry).decode()]
served = torch.compile(Net().eval(), dynamic=False)
with warmup.install(sys.argv[1], freezing=True), torch.no_grad():
    for rows in (8, 4):
        served(torch.randn(rows, 32))
        scrapes.append(generate_latest(registry).decode())
sys.stdout.write(json.dumps(scrapes))
