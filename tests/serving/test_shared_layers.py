"""`warmup.compile(layers=...)`: which layers share an artifact, and what cannot be shared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/programs/serve_layers.py"
TOLERANCE = 1e-4  # float32; the values are of the size of 1 to 100


@pytest.fixture(scope="module")
def served(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> dict[str, Any]:
    """What the program found, by name of the case."""
    found: dict[str, Any] = json.loads(run_once("shared-layers", str(PROGRAM), **variables)[1])
    return found


@pytest.fixture(scope="module")
def again(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str], served: dict[str, Any]
) -> dict[str, Any]:
    """What a second process found, with other weights and the caches on disk of the first."""
    assert served
    caches = run_once("shared-layers")[0] / "inductor"
    seed = "1"
    words = "layers-again", str(PROGRAM), seed
    said = run_once(*words, **{**variables, "TORCHINDUCTOR_CACHE_DIR": str(caches)})[1]
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.parametrize(
    ("name", "shared", "artifacts"),
    [
        ("equal", 4, 1),
        ("tied_across", 4, 1),
        ("tied_inside", 4, 1),
        ("range", 4, 1),
        ("pad", 4, 1),
        ("inference", 4, 1),
        ("alternates", 4, 2),
        ("other_eps", 4, 2),
        ("forms", 4, 2),
        ("floats", 3, 1),
        ("nested", 3, 1),  # Sequentials of Sequentials: the outermost
        ("padded", 4, 1),
        ("uneven", 5, 2),  # Sequentials of other lengths: the layers inside of each
        ("other_shape", 3, 1),
        ("parametrized", 3, 1),
        ("strided", 3, 1),
        ("frozen", 4, 1),
        ("frozen_tied_inside", 4, 1),
        ("frozen_other_eps", 4, 2),
        ("frozen_range", 4, 1),
        ("frozen_inference", 4, 1),
    ],
)
def test_equal_layers_are_compiled_once(
    served: dict[str, Any], name: str, shared: int, artifacts: int
) -> None:
    """So many layers share so many artifacts; with the graph around them, no more is compiled.

    The results are those of the uncompiled model at every size of the bucket.
    """
    found = served[name]
    assert (found["layers"]["shared"], found["layers"]["artifacts"]) == (shared, artifacts)
    assert found["layers"]["refusal"] is None
    assert found["graphs"] == artifacts + 1
    assert found["error"] <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "difference"),
    [
        ("alternates", "layers.1 and 1 more: layer.is_odd == False does not hold"),
        ("other_eps", "layers.2: layer.norm.eps == 1e-05 does not hold"),
    ],
)
def test_a_layer_that_differs_is_named_with_the_difference(
    served: dict[str, Any], name: str, difference: str
) -> None:
    """The line that says what is shared names the layers with an artifact of their own, and why."""
    assert served[name]["said"] == [
        f"layers: 4 layers share 2 artifacts in each bucket, proved equal ({difference})"
    ]


def test_auto_says_in_one_line_what_it_took_and_why(served: dict[str, Any]) -> None:
    """The first call logs the line, later ones and other sizes log none."""
    line = "layers: 4 layers share 1 artifact in each bucket, proved equal"
    assert served["equal"]["said"] == served["range"]["said"] == [line]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("reads_index", "too few layers are equal: layers.2: layer.layer_idx == 0 does not hold"),
        ("hooked_inside", "layers.1 has a hook, or a forward of its own, in up"),
        ("counts", "layers.0 changes layer in its forward"),
        ("appends", "layers.0 changes layer.seen in its forward"),
        ("drops", "layers.0 draws random numbers"),
        ("writes_input", "layers.0 writes into args[0]"),
        ("inference", "layers.0 writes into args[0]"),
        ("writes_buffer", "layers.0 writes into layer.shift"),
        ("returns_view", "layers.0 returns memory that is also an argument"),
        ("tagged", "layers.0 has a Tagged for layer.up.weight"),
        ("frozen_inference", "layers.0 has the inference tensor layer."),
        ("gradients", "layers.0 computes gradients"),
        ("none", "the model has no repeated layers"),
    ],
)
def test_what_cannot_be_shared_is_an_error_with_once(
    served: dict[str, Any], name: str, reason: str
) -> None:
    """The error is a `LayersError`, and names the layer and the reason."""
    assert served["refused"][name].startswith(f"LayersError: layers='once': {reason}")


def test_a_model_without_repeated_layers_is_a_whole_graph_and_says_so_once(
    served: dict[str, Any],
) -> None:
    """One line for all buckets and calls."""
    reason = "the model has no repeated layers"
    assert served["unrepeated"] == [f"layers: whole graphs are compiled, since {reason}"]


def test_a_refused_layer_has_not_run(served: dict[str, Any]) -> None:
    """A layer that counts its calls has counted none when sharing is refused."""
    assert served["counted"] == [0, 0, 0, 0]


def test_auto_compiles_the_whole_graph_where_the_model_sets_attributes(
    served: dict[str, Any],
) -> None:
    """A model that counts its calls counts each call once, and the reason is logged once."""
    found = served["counting_model"]
    assert found["calls"][0] == 2
    assert found["error"] <= TOLERANCE
    assert found["said"] == [
        "layers: whole graphs are compiled, since the model's forward sets calls"
    ]


@pytest.mark.parametrize(
    "change",
    [
        *("replaced", "hooked", "swapped", "configured", "added", "trained", "doubled"),
        *("turned", "reshaped"),
        *("item", "inner_item", "member", "slot", "change", "attribute_of_class"),
        *("module_global", "item_of_global"),
    ],
)
def test_a_change_is_noticed_at_the_next_call(served: dict[str, Any], change: str) -> None:
    """The layers are proved equal again, once, and the result is that of the changed model."""
    found = served["changes"][change]
    assert found["changes"] == 1
    assert found["refusal"] is None
    assert found["error"] <= TOLERANCE


@pytest.mark.parametrize("change", ["loaded", "pointed", "toggled", "other_global"])
def test_what_leaves_layers_equal_needs_no_proof(served: dict[str, Any], change: str) -> None:
    """`load_state_dict`, ``.data =`` with the same layout, ``model.train()`` then ``eval()``.

    Neither does a global that no layer reads, in a module with globals that layers read.
    """
    found = served["changes"][change]
    assert found["changes"] == 0
    assert found["error"] <= TOLERANCE


@pytest.mark.parametrize(
    ("change", "changes"), [("toggled", 0), ("replaced", 1), ("loaded", 1), ("pointed", 1)]
)
def test_frozen_weights_that_change_are_packed_again(
    served: dict[str, Any], change: str, changes: int
) -> None:
    """Also those that are written in place: the result is that of the changed model."""
    found = served["frozen_changes"][change]
    assert found["changes"] == changes
    assert found["refusal"] is None
    assert found["error"] <= TOLERANCE


def test_a_table_with_templates_serves_all_layers_from_one_artifact(
    served: dict[str, Any],
) -> None:
    """Of four layers with two products each, two sources are written, and two rows are asked for.

    Each layer has its own weights in the blocks of the templates.
    """
    found = served["template"]
    assert (found["layers"]["shared"], found["layers"]["artifacts"]) == (4, 1)
    assert (found["hits"], found["templates"]) == (2, 2)
    assert found["error"] <= TOLERANCE


def test_a_change_that_ends_sharing_is_served_by_the_whole_graph(served: dict[str, Any]) -> None:
    """A hook inside of a layer is called, and the report says why whole graphs are compiled."""
    found = served["changes"]["hooked_inside"]
    assert found["refusal"] == "layers.1 has a hook, or a forward of its own, in up"
    assert found["error"] <= TOLERANCE


def test_a_call_with_gradients_is_served_by_the_whole_graph(served: dict[str, Any]) -> None:
    """It is counted as a call of another form, and its result has a gradient."""
    found = served["otherwise"]
    assert found["grad"]
    assert found["before"]["otherwise"] == 1
    assert found["before"]["shared"] == 3
    assert found["error"] <= TOLERANCE


def test_a_reset_of_dynamo_is_a_change(served: dict[str, Any]) -> None:
    """The next call proves the layers again, and shares them."""
    found = served["otherwise"]
    assert found["after"]["changes"] == found["before"]["changes"] + 1
    assert found["after"]["otherwise"] == found["before"]["otherwise"]


def test_each_mode_of_torch_has_a_proof_of_its_own(served: dict[str, Any]) -> None:
    """Calls under autocast, in inference mode and without are each right, and nothing changed."""
    found = served["modes"]
    assert found["dtypes"] == ["torch.bfloat16", "torch.float32", "torch.float32"] * 2
    assert found["error"] <= TOLERANCE
    assert (found["layers"]["changes"], found["layers"]["otherwise"]) == (0, 0)


def test_a_mode_seen_before_needs_no_proof(served: dict[str, Any]) -> None:
    """Calls that alternate between modes compile nothing after the first of each."""
    assert served["modes"]["later"] == 0


@pytest.mark.parametrize("name", ["equal", "other_eps", "forms", "range"])
def test_another_process_lowers_nothing_for_other_weights(
    again: dict[str, Any], served: dict[str, Any], name: str
) -> None:
    """With the caches of a model with other weights, it shares as many layers and is right.

    Every graph comes from the cache of AOTAutograd, with what inductor made of it.
    """
    found = again[name]
    assert (found["lowered"], found["loaded"]) == (0, found["graphs"])
    assert found["layers"] == served[name]["layers"]
    assert found["error"] <= TOLERANCE


def test_warming_shares_layers(served: dict[str, Any]) -> None:
    """The call after it compiles nothing."""
    found = served["warmed"]
    assert (found["layers"]["shared"], found["layers"]["artifacts"]) == (4, 1)
    assert found["later"] == 0
    assert found["error"] <= TOLERANCE


ALL = "layers: 4 layers share 1 artifact in each bucket, proved equal"


@pytest.mark.parametrize(
    ("name", "way", "slower"),
    [
        ("not slower", "shared, which takes 1.000", []),
        ("slower", "a whole graph, since sharing takes 1.020", ["n=4"]),
    ],
)
def test_auto_takes_the_way_that_is_not_slower(
    served: dict[str, Any], name: str, way: str, slower: list[str]
) -> None:
    """Two layers are compiled as one graph, both ways are called, and one line says what is taken.

    The graphs are those of a layer, around the layers and of two layers; then the whole one.
    """
    found = served[name]
    ratio = float(way.rsplit(maxsplit=1)[-1])
    place = f"of the time of one graph ({ratio:.3f} to {ratio:.3f}, layers.0 and layers.1)"
    assert found["said"] == [ALL, f"layers: n=4: {way} {place}"]
    assert (found["layers"]["costs"], found["layers"]["slower"]) == ({"n=4": ratio}, slower)
    assert found["graphs"] == 3 + len(slower)
    assert found["layers"]["refusal"] is None
    assert found["error"] <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("apart", "no layer is called with what another returns"),
        ("unmeasured", "RuntimeError: no more memory"),
    ],
)
def test_layers_whose_cost_is_not_known_are_shared_and_the_log_says_why(
    served: dict[str, Any], name: str, reason: str
) -> None:
    """A start does not end because a measurement fails."""
    found = served[name]
    assert found["said"][-1] == f"layers: n=4: shared, not compared with one graph: {reason}"
    assert (found["layers"]["costs"], found["layers"]["shared"]) == ({}, 4)
    assert found["error"] <= TOLERANCE
