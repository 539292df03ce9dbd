"""These tests run real engines, where they can be imported: see the step of .ci/nightly."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_vllm*.py"]
