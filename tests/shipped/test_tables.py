"""Shipped tables as files: whole, in their place, of a complete origin and a known policy."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from warmup.core.errors import SettingsError
from warmup.inductor.options import _QUIET, check_options
from warmup.serving.check import Readiness, check
from warmup.table.codec import digest_of, encode
from warmup.table.schema import PolicyOptions, Table, choose_policy, compare_policies
from warmup.table.store import write

ROOT = Path(__file__).resolve().parents[2]
CONVOLUTIONS = "max_autotune_conv_backends"
SWITCHES = {"max_autotune_gemm", "max_autotune", "coordinate_descent_tuning"}  # every torch has


def is_whole(path: Path, table: Table) -> Iterator[str]:
    """It decodes, and it is what would be written today, but for fields of earlier builds."""
    document = json.loads(path.read_text(encoding="utf-8"))
    digest = document["provenance"].pop("digest")
    del document["policy"]["timing"]["launch"]
    for rows in document["rows"].values():
        for row in rows.values():
            for name in ("host_us", "library_host_us"):
                row["evidence"].pop(name, None)
    written = json.loads(encode(table))
    del written["provenance"]["digest"]
    if (digest_of(table), written) != (digest, document):
        yield "not in the canonical form"


def is_in_its_place(path: Path, table: Table) -> Iterator[str]:
    """tables/<device-slug>/<name>.json, in letters that every shell and volume takes."""
    slug = table.provenance.runtime.device.slug
    if (path.parent.parent.name, path.parent.name) != ("tables", slug):
        yield f"not under tables/{slug}"
    if re.fullmatch(r"[a-z0-9.-]+\.json", path.name) is None:
        yield f"the name {path.name}"


def is_ready_where_it_was_built(path: Path, table: Table) -> Iterator[str]:
    """`warmup check` finds nothing against it on a machine such as the one that built it."""
    report = check(path, here=table.provenance.runtime)
    if report.state is not Readiness.READY:
        yield f"{report.state}: {report.problems} {report.mismatches}"


def origin_is_complete(table: Table) -> Iterator[str]:
    origin, runtime = table.provenance, table.provenance.runtime
    device, on_gpu = runtime.device, runtime.device.type != "cpu"
    of_device = ("sm_count", "memory_gib") if on_gpu else ("threads",)
    of_runtime = ("triton", "cuda", "driver", "cublas") if on_gpu else ()
    said = {
        **{name: getattr(device, name) for name in ("vendor", "name", "arch", *of_device)},
        **{name: getattr(runtime, name) for name in ("torch", *of_runtime)},
        "warmup": origin.warmup,
    }
    yield from (f"no {name}" for name, value in said.items() if not value)
    try:
        dt.datetime.strptime(origin.created, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=dt.UTC)
    except ValueError as error:
        yield f"created: {error}"


def policy_is_known(table: Table) -> Iterator[str]:
    """It is the policy that a build of this mode and L2 has, under any torch."""
    policy = table.policy
    backends = policy.options.get("max_autotune_gemm_backends")
    asked = PolicyOptions(
        mode=policy.mode,
        backends=str(backends),
        l2=policy.timing.l2,
        fused_top_k=policy.timing.fused_top_k,
    )
    switches = {name: value for name, value in _QUIET.items() if name in policy.options}
    yield from (f"without the option {name}" for name in sorted(SWITCHES - policy.options.keys()))
    try:
        check_options(policy.options)
        known = choose_policy(asked, table.provenance.runtime.device.type, switches)
        options = dict(known.options)
        if policy.options.get(CONVOLUTIONS) == "ATEN":
            options[CONVOLUTIONS] = "ATEN"  # earlier builds left them to the library
        known = replace(known, options=options, searches=policy.searches)
    except SettingsError as error:
        yield str(error)
        return
    for name, expected, found in compare_policies(known, policy):
        yield f"{name}: {found}, where a build has {expected}"


def _changed(value: Any, path: str, new: Any) -> Any:
    """Return *value* with *new* at *path*: names of fields, at last one of an option."""
    name, _, rest = path.partition(".")
    if isinstance(value, Mapping):
        return {key: old for key, old in value.items() if key != path} | new
    inner = getattr(value, name)
    return replace(value, **{name: _changed(inner, rest, new) if rest else new})


def _option(name: str, value: str | bool) -> tuple[str, Mapping[str, str | bool]]:
    return f"policy.options.{name}", {name: value}


DAMAGES: Mapping[Callable[[Table], Iterator[str]], Sequence[tuple[str, Any]]] = {
    origin_is_complete: (
        ("provenance.runtime.device.sm_count", None),
        ("provenance.runtime.device.arch", ""),
        ("provenance.runtime.triton", None),
        ("provenance.runtime.driver", None),
        ("provenance.warmup", ""),
        ("provenance.created", "2026-13-01T00:00:00Z"),
    ),
    policy_is_known: (
        ("policy.mode", "fast"),
        ("policy.seed", 1),
        ("policy.tolerance", {"bf16": 0.5}),
        ("policy.timing.near_tie", 0.2),
        _option("max_autotune", True),
        _option("post_grad_custom_pre_pass", "x"),
        _option("max_autotune_gemm_backends", "CUTLASS"),
        ("policy.options.coordinate_descent_tuning", {}),
        ("policy.options.max_autotune_gemm_search_space", {}),
    ),
}


def test_every_shipped_table_is_listed(shipped: Mapping[Path, Table]) -> None:
    folder = ROOT / "tables"
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert [str(path) for path in shipped if f"({path.relative_to(folder)})" not in page] == []


def test_nothing_speaks_against_a_shipped_table(shipped: Mapping[Path, Table]) -> None:
    for path, table in shipped.items():
        for of_file in (is_whole, is_in_its_place, is_ready_where_it_was_built):
            assert list(of_file(path, table)) == [], (path.name, of_file)
        for of_table in (origin_is_complete, policy_is_known):
            assert list(of_table(table)) == [], (path.name, of_table)


def test_a_misplaced_copy_is_told(mixed: Table) -> None:
    """Another device's folder, another folder than tables, and letters that shells read."""
    slug = mixed.provenance.runtime.device.slug
    assert list(is_in_its_place(Path("tables") / slug / "x.json", mixed)) == []
    for place in ("tables/other/x.json", f"x/{slug}/x.json", f"tables/{slug}/X y.json"):
        assert list(is_in_its_place(Path(place), mixed)) != [], place


def test_a_damaged_table_is_told(mixed: Table, tmp_path: Path) -> None:
    """A device too small for templates would refuse their rows; other words break a claim."""
    small = _changed(mixed, "provenance.runtime.device.sm_count", 60)
    write(tmp_path / "small.json", small)
    assert list(is_ready_where_it_was_built(tmp_path / "small.json", small)) != []
    for claim, damages in DAMAGES.items():
        for path, new in damages:
            damaged = _changed(mixed, path, new)
            assert damaged != mixed, path
            assert list(claim(damaged)) != [], path
