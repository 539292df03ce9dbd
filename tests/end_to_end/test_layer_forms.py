"""`build --layers`: rows for layers compiled once and for whole graphs, and who answers for which.

One program builds and serves on the CPU without frozen weights, which test_frozen_forms has. What a
GPU asks for in each form is in tests/inductor/test_forms_without_gpu.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "build_forms.py"
BUCKET = "build_forms.Stack seqlen=16"
TOLERANCE = 1e-5  # float32, relative L2
# What `warmup.compile` logs under a table of the other form.
TOLD = {
    "once": "layers='once': the table has the rows of whole graphs; what only layers compiled once "
    "ask for is a miss (other_form): build it with `warmup build ... --layers once` into the same "
    "file",
    "whole": "layers='whole': the table has the rows of layers compiled once; what only whole "
    "graphs ask for is a miss (other_form): build it with `warmup build ... --layers whole` into "
    "the same file",
}


@pytest.fixture(scope="module")
def found(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> dict[str, Any]:
    """What the program printed."""
    printed = run_once("forms", str(PROGRAM), ".", **variables)[1]
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


def epilogues(keys: list[str]) -> list[str]:
    return [key.partition("epilogue=")[2] for key in keys]


def test_auto_builds_both_forms(found: dict[str, Any]) -> None:
    """The layer alone ends in a plain product, the whole graph fuses the next layer's activation.

    Each form is one run of the bucket, layers compiled once first.
    """
    keys = [(form, epilogues(keys)) for form, keys in found["build"]["keys"]]
    assert keys == [("once", ["none"]), ("whole", ["relu"])]
    assert found["build"]["tuned"] == 2


def test_the_table_says_in_which_form_a_bucket_was_built(found: dict[str, Any]) -> None:
    """Its provenance names the bucket with both forms."""
    assert found["build"]["forms"] == {BUCKET: ["once", "whole"]}


def test_a_plan_has_each_form(found: dict[str, Any]) -> None:
    """A dry run lists the bucket in both forms, and here finds every row in the table."""
    assert [(form, len(known)) for form, known in found["plan"]] == [("once", 1), ("whole", 1)]


def test_layers_compiled_once_are_served_strictly_from_their_rows(found: dict[str, Any]) -> None:
    """No miss and no measurement; one decision serves all layers, and the output is eager's."""
    served = found["once"]
    assert (served["misses"], served["uncovered"], served["said"]) == ({}, {}, [])
    assert list(served["hits"].values()) == [1]
    assert served["shared"] == 2
    assert served["error"] <= TOLERANCE


def test_whole_graphs_are_served_strictly_from_a_table_of_both(found: dict[str, Any]) -> None:
    """Rows of layers compiled once stand beside them, and nobody asks for these."""
    served = found["whole"]
    assert (served["misses"], served["uncovered"], served["said"]) == ({}, {}, [])
    assert epilogues(list(served["hits"])) == ["relu"]


def test_whole_graphs_miss_for_a_reason_of_their_own(found: dict[str, Any]) -> None:
    """Where the bucket was built of layers compiled once alone, the reason is the form.

    A line names the remedy. That another bucket was built of whole graphs does not count.
    """
    served = found["whole from once"]
    assert served["reasons"] == {"other_form": 2}
    assert served["said"] == [TOLD["whole"]]
    assert served["error"] <= TOLERANCE


def test_layers_compiled_once_miss_for_a_reason_of_their_own(found: dict[str, Any]) -> None:
    """Under a table of whole graphs the reason is the form, and a line names the remedy."""
    missed = found["loop"]["missed"]
    assert missed["reasons"] == {"other_form": 1}
    assert missed["said"] == [TOLD["once"]]


def test_an_audit_keeps_the_form_of_a_miss(found: dict[str, Any]) -> None:
    """The misses document says that layers compiled once have asked, and the audit what to do."""
    (problem,) = found["loop"]["misses"]
    assert (problem["reason"], problem["layers"]) == ("other_form", ["once"])
    assert [advice.partition(":")[0] for advice in found["loop"]["advice"]] == ["other_form"]


def test_a_build_from_misses_keeps_the_form(found: dict[str, Any]) -> None:
    """The completed table answers layers compiled once, and says so beside its earlier buckets."""
    loop = found["loop"]
    assert loop["forms"] == {"buckets of earlier builds": ["whole"], "misses of servers": ["once"]}
    assert (loop["served"]["misses"], loop["served"]["uncovered"]) == ({}, {})
    assert loop["served"]["said"] == []


def test_a_range_is_built_and_served_with_layers_compiled_once(found: dict[str, Any]) -> None:
    """The layer alone is compiled for the range, asks for the key of the range, and has its row."""
    built, served = found["range"]["build"], found["range"]["served"]
    sizes = [(form, keys[0].split()[1]) for form, keys in built["keys"]]
    assert sizes == [("once", "m=1"), ("once", "m=2..16")]
    assert (served["misses"], served["uncovered"], served["shared"]) == ({}, {}, 2)
    assert served["error"] <= TOLERANCE


def test_once_is_an_error_where_no_layer_repeats(found: dict[str, Any]) -> None:
    """The build names the reason, and writes no table."""
    single = found["single"]
    assert single["refused"].startswith(
        "LayersError: layers='once': the model has no repeated layers"
    )
    assert not single["is_written"]


def test_auto_builds_whole_graphs_where_no_layer_repeats(found: dict[str, Any]) -> None:
    """One line says why, and the table is one of whole graphs, as without the option."""
    single = found["single"]
    assert [form for form, _ in single["auto"]["keys"]] == ["whole"]
    assert single["auto"]["forms"] == {}
    assert single["said"] == [
        "layers: only whole graphs are built, since the model has no repeated layers"
    ]
