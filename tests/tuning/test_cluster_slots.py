"""Which devices of a Ray cluster ``--devices`` names, and what Ray is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from warmup.core.errors import SettingsError
from warmup.tuning.cluster.slots import ClusterNode, alive_nodes, slots_of
from warmup.tuning.devices.host import GPU_LANES


def _node(host: str, *, gpus: int = 0, kind: str = "GPU", cpus: int = 8) -> ClusterNode:
    return ClusterNode(node_id=f"id-{host}", host=host, cpus=cpus, gpus=gpus, kind=kind)


H100S = (_node("a", gpus=2, kind="H100"), _node("b", gpus=1, kind="H100"))
MIXED = (*H100S, _node("c", gpus=1, kind="A100"))
HEAD = _node("head", cpus=0)


def test_all_is_every_gpu_of_the_cluster() -> None:
    """Each GPU is a slot of its node; nodes without GPUs have none."""
    slots = slots_of("all", [*H100S, _node("d"), HEAD])
    assert [slot.name for slot in slots] == ["a gpu 1", "a gpu 2", "b gpu 1"]
    assert [slot.node_id for slot in slots] == ["id-a", "id-a", "id-b"]


def test_an_actor_is_placed_by_the_kind_of_its_gpu() -> None:
    """Ray reserves one GPU of that kind, and the workers of a node share its cores."""
    slot = slots_of("h100", MIXED)[0]
    assert slot.resources == {
        "num_cpus": 0,
        "num_gpus": 1,
        "resources": {"accelerator_type:H100": 0.001},
    }
    assert (slot.inside, slot.lanes, slot.node_devices) == ("cuda:0", GPU_LANES, 2)


def test_a_number_limits_the_devices() -> None:
    """The first so many are taken, and fewer where there are fewer."""
    assert len(slots_of("H100=2", MIXED)) == 2
    assert len(slots_of("H100=9", MIXED)) == 3


def test_cpu_is_each_node_that_has_cpus() -> None:
    """A node is one device with one worker, and reserves one CPU."""
    slots = slots_of("cpu", [_node("a"), HEAD, _node("b")])
    assert [(slot.name, slot.lanes) for slot in slots] == [("a", 1), ("b", 1)]
    assert (slots[0].inside, slots[0].resources) == ("cpu", {"num_cpus": 1})


def test_nodes_of_one_host_have_different_names() -> None:
    """Runners are told apart by their names."""
    slots = slots_of("cpu", [_node("a"), _node("a"), _node("b")])
    assert [slot.name for slot in slots] == ["a/1", "a/2", "b"]


def test_what_names_no_devices_is_refused() -> None:
    """The error says what the cluster has."""
    for text, nodes, said in (
        ("all", MIXED, "GPUs of several kinds, H100, A100; name one"),
        ("all", [_node("a")], "the cluster has no such device; use cpu"),
        ("B200", MIXED, "the cluster has no such device; use H100 or A100 or cpu"),
        ("cpu", [HEAD], "the cluster has no such device"),
        ("H100=0", MIXED, "has another form"),
        ("H100=many", MIXED, "has another form"),
        ("", MIXED, "has another form"),
    ):
        with pytest.raises(SettingsError, match=said):
            slots_of(text, nodes)


def test_nodes_are_read_as_ray_lists_them() -> None:
    """A node that has ended is left out; a GPU without a name is of the kind GPU."""
    listed: dict[str, Any] = {
        "NodeID": "1",
        "Alive": True,
        "NodeManagerHostname": "a",
        "Resources": {"CPU": 4.0, "GPU": 2.0, "accelerator_type:H100": 1.0},
    }
    unnamed = {**listed, "NodeID": "2", "Resources": {"GPU": 1.0}}
    assert alive_nodes([listed, unnamed, {**listed, "Alive": False}]) == [
        ClusterNode(node_id="1", host="a", cpus=4, gpus=2, kind="H100"),
        ClusterNode(node_id="2", host="a", cpus=0, gpus=1, kind="GPU"),
    ]
    assert slots_of("all", alive_nodes([unnamed]))[0].resources["resources"] == {}
