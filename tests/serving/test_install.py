"""`install` a second time, in one thread and from two, with the installed torch."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sample_tables import make_runtime, make_table

import warmup
from warmup.core.device import compare_runtimes
from warmup.core.errors import StaleTableWarning, TableMismatchError, TableNotFoundError
from warmup.inductor import connect
from warmup.serving.audit import audit
from warmup.serving.handle import installed
from warmup.serving.install import admit
from warmup.table.schema import OnMiss, Policy, Table
from warmup.table.store import FoundTable, write

ROUNDS = 10


@pytest.fixture(scope="module")
def tables() -> tuple[Table, Table]:
    inductor = connect()
    policy = Policy(
        mode="max-autotune-gemm",
        options={**inductor.quiet_switches(), "max_autotune_gemm_backends": "ATEN,CPP"},
        timing=make_table().policy.timing,
        seed=0,
        tolerance={},
    )
    rows, runtime = dict(make_table().rows), inductor.runtime("cpu")
    empty, filled = (make_table(each, runtime=runtime, policy=policy) for each in ({}, rows))
    return empty, filled


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("WARMUP_AUDIT_LOG", raising=False)
    monkeypatch.setenv("WARMUP_DEVICE", "cpu")
    assert installed() is None
    yield
    handle = installed()
    while handle is not None:
        handle.close()
        handle = installed()


install = warmup.install


def event_names(log: Path) -> list[str]:
    return [json.loads(line)["event"] for line in log.read_text().splitlines()]


def test_the_same_table_twice_is_one_install(tables: tuple[Table, Table], tmp_path: Path) -> None:
    """A plugin and `warmup run` together: one handle, one event each at its start and its end."""
    log = tmp_path / "audit.jsonl"
    first = install(tables[0], audit_log=log)
    assert install(tables[0], audit_log=log) is first
    first.close()
    assert "run.summary" not in event_names(log)
    first.close()
    assert [event_names(log).count(name) for name in ("table.installed", "run.summary")] == [1, 1]
    assert installed() is None


def test_other_settings_are_an_error(
    tables: tuple[Table, Table], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The error names the setting; the first install stays, and no file is made."""
    for case, (settings, difference) in {
        "on_miss": ({"on_miss": "strict"}, "on_miss: installed fallback, asked strict"),
        "uncovered": ({"uncovered": "forbid"}, "uncovered: installed library, asked forbid"),
        "audit_log": ({"audit_log": "other.jsonl"}, "audit_log: installed none, asked "),
        "model": (
            {"model": torch.nn.Linear(2, 2).eval()},
            "pads_model: installed false, asked true",
        ),
    }.items():
        tmp_path = tmp_path_factory.mktemp("case")
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.chdir(tmp_path)
            first = install(tables[0])
            with pytest.raises(warmup.SettingsError, match="a table is installed already") as error:
                install(tables[0], **settings)
            assert difference in str(error.value), case
            assert (installed(), list(tmp_path.iterdir())) == (first, []), case


def with_threads(table: Table, threads: int) -> Table:
    runtime = table.provenance.runtime
    runtime = replace(runtime, device=replace(runtime.device, threads=threads))
    return replace(table, provenance=replace(table.provenance, runtime=runtime))


def test_where_no_table_of_the_searched_folders_fits(
    tables: tuple[Table, Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fallback the process goes on without; strict, and folders without a table, are errors."""
    own, shipped = tmp_path / "tables", tmp_path / "shipped"
    monkeypatch.setattr("warmup.table.store.search_folders", lambda: (own, shipped))
    for on_miss in ("fallback", "strict"):
        with pytest.raises(TableNotFoundError):
            install(on_miss=on_miss)
    other = with_threads(tables[0], 10_000)
    slug = other.provenance.runtime.device.slug
    for folder in (shipped / "another-name", own / slug):  # of a shipped one the name counts
        with pytest.raises(TableNotFoundError):
            install()
        folder.mkdir(parents=True)
        write(folder / "t.json", other)
    with install() as handle:
        assert str(handle.refused).startswith(f"{own / slug / 't.json'}: tuned on ")
        assert handle.report().mismatch == 1
    with pytest.raises(TableNotFoundError, match="threads"):
        install(on_miss="strict")


def test_under_an_unsupported_torch_nothing_is_applied(
    tables: tuple[Table, Table],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In fallback one line, an event and a count, also where a mismatch is allowed; else it raises.

    A torch of a supported minor whose internals differ, such as a nightly, is one of them.
    """
    gone = ("warmup.inductor.adapter.INTERNALS", ("torch._inductor.ir:Gone",))
    for name, change in {"2.10.0": ("torch.__version__", "2.10.0"), "Gone": gone}.items():
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            patch.setattr("warmup.serving.handle._given", set())
            log = tmp_path / f"{name}.jsonl"
            patch.setenv("WARMUP_ALLOW_MISMATCH", "1")
            with install(tables[0], audit_log=log) as handle:
                assert name in str(handle.refused), name
                assert handle.report().mismatch == 1, name
            assert name in capsys.readouterr().err, name
            assert event_names(log) == ["table.mismatch", "run.summary"], name
            assert name in log.read_text().partition('"mismatches":')[2], name
            with pytest.raises(warmup.AdapterError, match=name):
                install(tables[0], on_miss="strict")


def test_of_a_table_for_another_machine_nothing_is_applied(
    tables: tuple[Table, Table],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In fallback: no hook, no option, no cache tag; one line, an event, a count. Strict raises."""
    from torch._inductor import config

    monkeypatch.setattr("warmup.serving.handle._given", set())  # a process says it once
    other = with_threads(tables[1], 10_000)
    log = tmp_path / "audit.jsonl"
    before = (config.save_config_portable(), torch._inductor.compile_fx.compile_fx)  # type: ignore[no-untyped-call]
    with install(other, audit_log=log) as handle:
        after = (config.save_config_portable(), torch._inductor.compile_fx.compile_fx)  # type: ignore[no-untyped-call]
        assert before == after
        assert connect().earlier_compiles()[1] is False
        assert install(other, audit_log=log) is handle
        handle.close()
        report = handle.report()
    assert (report.mismatch, report.is_clean) == (1, False)
    assert "[MISMATCH: " in str(report)
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if "nothing of the table is applied" in line]) == 1
    assert event_names(log) == ["table.mismatch", "run.summary"]
    found = audit([log])
    assert (found.runs, found.mismatch, found.silent, found.unused) == (0, 1, (), None)
    assert found.failures(["mismatch", "silent", "miss"]) == ("mismatch", "silent")
    with pytest.raises(TableMismatchError):
        install(other, on_miss="strict")
    with install(tables[1]):
        assert config.save_config_portable() == before[0]  # options are of compiles only
        assert torch._inductor.compile_fx.compile_fx is not before[1]


def test_another_table_is_an_error_until_the_first_is_closed(tables: tuple[Table, Table]) -> None:
    with install(tables[0]) as first:
        message = f"digest: installed {first.digest}, asked "
        with pytest.raises(warmup.SettingsError, match=message):
            install(tables[1])
    with install(tables[1]) as second:
        assert installed() is second


def install_at_once(one: Table, other: Table) -> list[warmup.Handle | Exception]:
    """Install both tables from two threads that start together; return what each got."""
    barrier = threading.Barrier(2)
    results: list[warmup.Handle | Exception] = []

    def work(table: Table) -> None:
        barrier.wait()
        try:
            results.append(install(table))
        except warmup.WarmupError as error:
            results.append(error)

    threads = [threading.Thread(target=work, args=(table,)) for table in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_of_two_tables_installed_at_once_one_wins(tables: tuple[Table, Table]) -> None:
    """In every round one thread has the installed handle, and the other the typed error."""
    for _ in range(ROUNDS):
        handle, error = sorted(install_at_once(*tables), key=lambda got: isinstance(got, Exception))
        assert isinstance(error, warmup.SettingsError)
        assert isinstance(handle, warmup.Handle)
        assert handle is installed()
        handle.close()
        assert installed() is None


def test_one_table_installed_at_once_by_two_threads_is_one_install(
    tables: tuple[Table, Table],
) -> None:
    """Both threads get the same handle, and the second close ends it."""
    for _ in range(ROUNDS):
        one, other = install_at_once(tables[0], tables[0])
        assert isinstance(one, warmup.Handle)
        assert one is other
        one.close()
        assert installed() is one
        one.close()
        assert installed() is None


def admitted(
    on_miss: OnMiss = OnMiss.STRICT, *, is_allowed: bool = False, **changes: str | int
) -> list[str]:
    """``admitted(is_allowed=True, sm_count=78)``: the warnings of a table on such a machine."""
    found, here = FoundTable(make_table(), ()), make_runtime(**changes)
    mismatches = compare_runtimes(found.table.provenance.runtime, here)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        refused = admit(found, here, mismatches, on_miss=on_miss, is_allowed=is_allowed)
    assert all(each.category is StaleTableWarning for each in caught)
    return [str(each.message) for each in caught] + ([refused] if refused else [])


def test_a_table_of_another_machine_is_refused_with_a_sentence() -> None:
    """It says what the table was tuned on and what is here: an error but in fallback."""
    said = (
        "the table: tuned on NVIDIA H200 (sm_90, 132 SMs, 140 GiB) with torch 2.13.0 and "
        "triton 3.7.0, and here is NVIDIA H200 (sm_90, "
    )
    for changes in ({"sm_count": 78}, {"torch": "2.12.0"}, {"triton": "3.5.0"}):
        with pytest.raises(TableMismatchError) as caught:
            admitted(OnMiss.STRICT, **changes)
        assert str(caught.value).startswith(said), changes
        (refused,) = admitted(OnMiss.FALLBACK, **changes)
        assert refused.startswith(said), changes
    (allowed,) = admitted(is_allowed=True, sm_count=78, arch="sm_80", torch="2.12.0")
    assert allowed.endswith(": every lookup is a miss")


def test_soft_differences_are_a_warning_and_refuse_nothing() -> None:
    assert admitted() == []
    assert admitted(driver="581", cuda="12.9") == [
        "the table: cuda: table 13.0, here 12.9; driver: table 580.65, here 581: timings may be off"
    ]
