"""`slots_of`: the devices of a Ray cluster that ``--devices`` names, one `ClusterSlot` for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warmup.core.error_text import shown
from warmup.core.errors import SettingsError
from warmup.tuning.devices.host import ALL, GPU_LANES

CPU: Final = "cpu"
_KIND_RESOURCE: Final = "accelerator_type:"  # of a node, before the kind of its GPUs
_UNNAMED_KIND: Final = "GPU"  # of GPUs for which Ray has no name
_KIND_SHARE: Final = 0.001  # as Ray's own `accelerator_type` asks for it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A node of the cluster that is alive: its host, and what Ray may place there."""

    node_id: str
    host: str
    cpus: int
    gpus: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSlot:
    """A device of the cluster: its ``name`` for people, and the node on which its actor is placed.

    ``kind`` is that of the GPU, `CPU` for a CPU. The actor has ``lanes`` workers, as has that of
    each of the ``node_devices`` of its node.
    """

    name: str
    node_id: str
    kind: str
    lanes: int = 1
    node_devices: int = 1

    @property
    def inside(self) -> str:
        """What the workers call the device, of which they see no other one."""
        return "cpu" if self.kind == CPU else "cuda:0"

    @property
    def resources(self) -> Mapping[str, Any]:
        """What Ray gives to the actor and to nobody else, as options of an actor."""
        if self.kind == CPU:
            return {"num_cpus": 1}
        named = {} if self.kind == _UNNAMED_KIND else {_KIND_RESOURCE + self.kind: _KIND_SHARE}
        return {"num_cpus": 0, "num_gpus": 1, "resources": named}


def alive_nodes(listed: Iterable[Mapping[str, Any]]) -> list[ClusterNode]:
    """Return the nodes that are alive of *listed*, which is what ``ray.nodes()`` returns."""
    found = []
    for node in listed:
        if not node["Alive"]:
            continue
        resources = node["Resources"]
        kinds = [
            name.removeprefix(_KIND_RESOURCE)
            for name in resources
            if name.startswith(_KIND_RESOURCE)
        ]
        found.append(
            ClusterNode(
                node_id=node["NodeID"],
                host=node["NodeManagerHostname"],
                cpus=int(resources.get("CPU", 0)),
                gpus=int(resources.get("GPU", 0)),
                kind=kinds[0] if kinds else _UNNAMED_KIND,
            )
        )
    return sorted(found, key=lambda node: (node.host, node.node_id))


def slots_of(text: str, nodes: Sequence[ClusterNode]) -> list[ClusterSlot]:
    """Return a slot for each device of *nodes* that *text* names.

    *text* is ``all``, which is every GPU; the kind of a GPU, as Ray calls it; or ``cpu``, which is
    every node that has CPUs. ``KIND=N`` is at most so many of them.

    Raises:
        SettingsError: *text* has another form, the cluster has no such device, or ``all`` is of
            several kinds.
    """
    kind, _, limit = text.strip().partition("=")
    if not kind or (limit and not (limit.isascii() and limit.isdigit() and int(limit))):
        raise SettingsError(
            f"--devices {shown(text)!r} has another form", "use all, H100 or H100=8"
        )
    if kind == CPU:
        with_cpus = [node for node in nodes if node.cpus]
        found = [
            ClusterSlot(name=name, node_id=node.node_id, kind=CPU)
            for name, node in zip(_node_names(with_cpus), with_cpus, strict=True)
        ]
    else:
        found = _gpu_slots(kind, nodes)
    if not found:
        raise SettingsError(
            f"--devices {shown(text)}: the cluster has no such device",
            f"use {' or '.join(dict.fromkeys([*_kinds(nodes), CPU]))}",
        )
    return found[: int(limit)] if limit else found


def _gpu_slots(kind: str, nodes: Sequence[ClusterNode]) -> list[ClusterSlot]:
    kinds = _kinds(nodes)
    if kind == ALL and len(kinds) > 1:
        raise SettingsError(
            f"--devices all: the cluster has GPUs of several kinds, {', '.join(kinds)}",
            "name one, and build for each kind into a table of its own",
        )
    chosen = [n for n in nodes if n.gpus and kind.casefold() in {ALL, n.kind.casefold()}]
    return [
        ClusterSlot(
            name=f"{name} gpu {index + 1}",
            node_id=node.node_id,
            kind=node.kind,
            lanes=GPU_LANES,
            node_devices=node.gpus,
        )
        for name, node in zip(_node_names(chosen), chosen, strict=True)
        for index in range(node.gpus)
    ]


def _kinds(nodes: Iterable[ClusterNode]) -> list[str]:
    return list(dict.fromkeys(node.kind for node in nodes if node.gpus))


def _node_names(nodes: Sequence[ClusterNode]) -> list[str]:
    """Return the host of each node; of several nodes on one host with a number."""
    hosts, seen = Counter(node.host for node in nodes), Counter[str]()
    names = []
    for node in nodes:
        seen[node.host] += 1
        names.append(node.host if hosts[node.host] == 1 else f"{node.host}/{seen[node.host]}")
    return names
