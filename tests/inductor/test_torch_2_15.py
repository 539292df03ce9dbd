"""What torch 2.15 alone has: captures say under which table, and inductor composes choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_tables import make_table

from warmup.core.errors import ForeignGraphError, warmup_error_in
from warmup.core.events import Emitter, Event, EventName
from warmup.inductor import connect
from warmup.table.lookup import Lookup
from warmup.table.schema import BUILD_MODES, OnMiss, Table, Uncovered
from warmup.table.store import write

precompile: Any = pytest.importorskip("torch.compiler.precompile")

from torch._functorch import config as functorch_config  # noqa: E402
from torch._inductor import choices, config  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402

door: Any = choices

Arguments = tuple[torch.nn.Module, torch.Tensor, torch.Tensor]


class Batched(torch.nn.Module):
    """A product without weights, of which inductor lists several kernels."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.bmm(a, b))


@contextmanager
def attached(tag: str, word: Uncovered = Uncovered.LIBRARY) -> Iterator[list[Event]]:
    events: list[Event] = []
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([events.append]), on_uncovered=word)
    inductor = connect()
    options = {**inductor.quiet_switches(), **BUILD_MODES["max-autotune"]}
    attachment = inductor.attach(lookup, options, tag, quiet=True)
    try:
        yield events
    finally:
        attachment.detach()


def test_a_capture_is_loaded_under_its_table_and_foreign_under_another(tmp_path: Path) -> None:
    """A capture without a table is foreign too; where foreign graphs are refused, loading fails."""
    arguments: Arguments = (Batched(), torch.randn(4, 8, 32), torch.randn(4, 32, 48))

    def capture(name: str) -> tuple[Path, Path]:
        paths = tmp_path / f"{name}.py", tmp_path / f"{name}.cache"
        made = precompile.capture(
            lambda model, a, b: model(a, b), artifact_path=paths[0], cache_path=paths[1]
        )
        with torch.no_grad(), made as call:
            call(*arguments)
        return paths

    with attached("of-a-table"):
        own = capture("own")
    plain = capture("plain")
    for tag, paths, name in (
        ("of-a-table", own, EventName.CACHED),
        ("of-another", own, EventName.FOREIGN),
        ("of-a-table", plain, EventName.FOREIGN),
    ):
        with attached(tag) as events:
            loaded = precompile.load(*paths)
            assert [event.name for event in events] == [name], (tag, paths)
        torch.testing.assert_close(loaded(*arguments), arguments[0](*arguments[1:]))
    with attached("of-another", Uncovered.FORBID), pytest.raises(Exception) as caught:  # noqa: PT011  torch may wrap it
        precompile.load(*own)
    assert isinstance(warmup_error_in(caught.value), ForeignGraphError)


# Compiles under a table and a tag that the program sets later, and prints the keys of its graphs.
KEYS = """
import json, sys
from pathlib import Path
import torch, warmup
from torch._inductor.runtime.cache_dir_utils import cache_dir
with warmup.install(sys.argv[1]), torch.compiler.config.patch(cache_key_tag="own"):
    torch.compile(lambda a, b: torch.relu(a @ b))(torch.ones(8, 9), torch.ones(9, 10))
found = (Path(cache_dir()).glob(each) for each in ("fxgraph/*/*", "aotautograd/*"))
print(json.dumps([[path.name for path in each] for each in found]))
"""


class Own(choices.InductorChoices):
    """A program's choices; ``listed`` counts its lists of candidates."""

    listed = 0

    def uuid(self) -> str:
        return "own"

    def _finalize_template_configs(self, *args: Any, **kwargs: Any) -> Any:
        Own.listed += 1
        return super()._finalize_template_configs(*args, **kwargs)


class Elsewhere(choices.InductorChoices):
    """A program's choices that list candidates without torch's method."""

    def uuid(self) -> str:
        return "elsewhere"

    def _finalize_template_configs(self, listed: Any, *_: Any, **__: Any) -> Any:
        return [each for group in listed.values() for each in group]


class Unnamed(choices.InductorChoices):
    """A program's choices that have no uuid()."""


def compile_product() -> None:
    torch._dynamo.reset()
    a, b = torch.randn(4, 8, 32), torch.randn(4, 32, 48)
    with config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        torch.testing.assert_close(torch.compile(torch.bmm, dynamic=False)(a, b), torch.bmm(a, b))


def key_of_choices() -> Any:
    return door.inductor_choices_cache_key(config.inductor_choices_class)


@contextmanager
def registered(made: type[choices.InductorChoices]) -> Iterator[None]:
    door.register_inductor_choices("own", made)
    try:
        yield
    finally:
        door.unregister_inductor_choices("own")


def test_keys_of_graphs_have_the_digest_whatever_tag_a_program_sets(
    tmp_path: Path, run_program: Callable[..., Any]
) -> None:
    """Each process begins with empty caches: one key for each table, in both of torch's caches."""
    policy = replace(make_table().policy, options=dict(connect().quiet_switches()))
    tables = [
        make_table({}, runtime=connect().runtime("cpu"), policy=policy, created=created)
        for created in ("2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z")
    ]

    def keys(name: str, table: Table) -> list[list[str]]:
        folder = tmp_path / name
        folder.mkdir()
        path = folder / "table.json"
        write(path, table)
        found: list[list[str]] = run_program(folder, "-c", KEYS, str(path), WARMUP_DEVICE="cpu")
        return found

    first, again, other = (
        keys(*case) for case in zip("abc", (tables[0], tables[0], tables[1]), strict=True)
    )
    assert [len(each) for each in first] == [1, 1]
    assert first == again
    assert all(one != another for one, another in zip(first, other, strict=True))


def test_a_programs_choices_stay() -> None:
    """Registered before or after, or set as a handler: torch calls them, and rows are looked up."""

    def check(call: Callable[[], Any], *, is_own: bool = True) -> None:
        Own.listed = 0
        events.clear()
        call()
        assert (Own.listed > 0) is is_own
        assert [event.name for event in events] == [EventName.MISSED]

    def check_threads(*uuids: str) -> None:
        assert key_of_choices() == ("composed_inductor_choices", uuids)
        check(compile_product)
        with ThreadPoolExecutor(1) as pool:
            check(lambda: pool.submit(compile_product).result())
        # Torch gives no handler to a thread that has one; warmup's hooks are in all of them.
        check(lambda: earlier.submit(compile_product).result(), is_own=False)

    with ThreadPoolExecutor(1) as earlier:
        earlier.submit(lambda: type(V.choices)).result()
        with registered(Own):
            handler, known = V.choices, door.registered_inductor_choices()
            with attached("tag") as events:
                check_threads("own", "tag")
            assert (V.choices, door.registered_inductor_choices()) == (handler, known)
        with attached("tag") as events:
            with registered(Own):
                check_threads("tag", "own")
            assert key_of_choices() == "tag"
    with V.set_choices_handler(Own()):
        handler = V.choices
        with attached("tag") as events:
            check(compile_product)
        assert V.choices is handler
    assert key_of_choices() is None


def test_choices_that_list_elsewhere_are_named() -> None:
    with attached("tag") as events, registered(Elsewhere):
        compile_product()
    (said,) = (event for event in events if event.name is EventName.CONTRADICTED)
    assert said.fields["found"] == "Elsewhere"


@pytest.mark.parametrize("is_first", [True, False])
def test_choices_without_an_uuid_stand_alone(is_first: bool) -> None:
    """Torch compiles with them where nothing is cached; beside registered ones it would refuse."""

    def compile_in_thread() -> None:
        with config.patch(inductor_choices_class=Unnamed):
            compile_product()
            assert type(V.choices) is Unnamed

    with (
        config.patch(inductor_choices_class=Unnamed if is_first else None),
        attached("tag") as said,
    ):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(compile_in_thread).result()
        assert door.registered_inductor_choices() == ()
    (found,) = (each.fields["found"] for each in said if each.name is EventName.CONTRADICTED)
    assert ("refused by torch" if is_first else "Unnamed") in found
