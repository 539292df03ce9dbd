"""`check`: a table against a stated machine; the states, and the differences that are named."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from own_processes import run_python
from sample_tables import make_key, make_runtime, make_table

from warmup.core.device import closed_gate
from warmup.core.errors import SettingsError
from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.serving.check import CheckReport, Readiness, check
from warmup.table.codec import digest_of, encode
from warmup.table.schema import Table

Put = Callable[[Table], Path]
Check = Callable[..., CheckReport]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """``put(table)``: the path of a file with that table, in a folder of its own."""

    def write(table: Table) -> Path:
        path = tmp_path / "tables" / "table.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(encode(table), encoding="ascii")
        return path

    return write


@pytest.fixture
def compare(put: Put) -> Check:
    """``compare({"sm_count": 132}, {"sm_count": 78})``: a table of one machine on another."""

    def run(there: dict[str, object], here: dict[str, object]) -> CheckReport:
        path = put(make_table(runtime=make_runtime(**there)))
        return check(path, here=make_runtime(**here))

    return run


def test_a_table_is_ready_where_it_was_tuned(compare: Check) -> None:
    """Driver, CUDA, cuBLAS and patch versions may differ, and a GPU's name: each is listed."""
    report = compare({}, {})
    assert (report.state, report.state.exit_code) == (Readiness.READY, 0)
    assert (report.mismatches, report.problems, report.remarks) == ((), (), ())
    assert report.rows == {"gemm": 2}
    here = {"driver": "581", "cuda": "13.1", "cublas": "13.2", "torch": "2.13.1", "triton": "3.7.9"}
    report = compare({}, here)
    assert report.state is Readiness.READY
    assert {each.field for each in report.mismatches} == set(here)
    for name in ("NVIDIA H200 NVL", ""):
        report = compare({}, {"name": name})
        assert (report.state, [m.field for m in report.mismatches]) == (
            Readiness.READY,
            ["device.name"],
        ), name


def test_a_file_that_is_no_table_is_invalid(tmp_path: Path) -> None:
    """A missing, damaged or newer file is invalid, with one problem that names it, and code 12.

    A count of SMs changed by hand does not pass as a table of that device.
    """
    path = tmp_path / "table.json"
    edited = encode(make_table()).replace('"sm_count": 132', '"sm_count": 114')
    for text in (None, "", "{", '{"schema": 99}', "[]", edited):
        if text is not None:
            path.write_text(text)
        report = check(path, here=make_runtime(sm_count=114))
        assert (report.state.exit_code, report.digest) == (12, None), text
        assert [str(path) in problem for problem in report.problems] == [True], text


def test_a_hard_difference_is_a_mismatch_with_both_values(compare: Check) -> None:
    for changes, field, expected, found in (
        ({"vendor": "amd"}, "device.vendor", "nvidia", "amd"),
        ({"arch": "sm_100"}, "device.arch", "sm_90", "sm_100"),
        ({"sm_count": 114}, "device.sm_count", "132", "114"),
        ({"memory_gib": 80}, "device.memory_gib", "140", "80"),
        ({"mig": "3g.71gb"}, "device.mig", "none", "3g.71gb"),
        ({"torch": "2.14.0"}, "torch minor", "2.13", "2.14"),
        ({"triton": "3.8.0"}, "triton minor", "3.7", "3.8"),
    ):
        report = compare({}, changes)
        (mismatch,) = report.mismatches
        assert (report.state.exit_code, mismatch.is_hard) == (10, True), changes
        assert (mismatch.field, mismatch.expected, mismatch.found) == (field, expected, found)


def test_the_same_profile_or_memory_class_is_the_same_device(compare: Check) -> None:
    """Whichever slice it is, and within 1 GiB."""
    slice_of = {"mig": "4g.71gb", "sm_count": 72, "memory_gib": 70}
    assert compare(slice_of, slice_of).state is Readiness.READY
    for there, here in ((79, 80), (40, 39)):
        assert compare({"memory_gib": there}, {"memory_gib": here}).state is Readiness.READY


def test_templates_below_the_gate_are_a_mismatch(compare: Check, put: Put) -> None:
    """With fewer than 68 SMs inductor offers no template; rows of the library serve there."""
    report = compare({"sm_count": 58}, {"sm_count": 58})
    assert (report.state, [each.field for each in report.mismatches]) == (
        Readiness.MISMATCH,
        ["template gate"],
    )
    assert "58 SMs, it needs at least 68 SMs); 2 rows name one" in report.remarks[0]
    evidence = Evidence(time_us=1.0, library_us=1.0, runner_up=None, runner_up_us=None, tried=2)
    rows = {make_key(16): Row(Winner(Family.EXTERN, "aten::bias_addmm"), evidence)}
    small = make_runtime(sm_count=58)
    report = check(put(make_table(rows, runtime=small)), here=small)
    assert (report.state, report.mismatches, len(report.remarks)) == (Readiness.READY, (), 1)


def test_the_gate_is_inductors_own() -> None:
    for changes, is_closed in (
        ({"sm_count": 67}, True),
        ({"sm_count": 68}, False),
        ({"sm_count": None}, False),
        ({"type": "cpu", "sm_count": None}, False),
        ({"vendor": "amd", "arch": "gfx942", "sm_count": 38}, False),
        ({"vendor": "amd", "arch": "gfx1030", "sm_count": 80}, True),
        ({"vendor": "amd", "arch": "gfx1100", "sm_count": 48}, False),
    ):
        assert (closed_gate(make_runtime(**changes).device) is not None) == is_closed


def test_the_digest_may_be_expected(put: Put) -> None:
    """In either case; another is a mismatch with both, a shortened one a wrong setting."""
    path, digest, here = put(make_table()), digest_of(make_table()), make_runtime()
    for spelled in (digest, digest.upper()):
        report = check(path, expect_digest=spelled, here=here)
        assert (report.state, report.digest) == (Readiness.READY, digest)
    report = check(path, expect_digest="0" * 64, here=here)
    (mismatch,) = report.mismatches
    assert report.state.exit_code == 10
    assert (mismatch.field, mismatch.expected, mismatch.found) == ("digest", "0" * 64, digest)
    with pytest.raises(SettingsError, match="not a SHA-256 digest; give 64 hex digits"):
        check(path, expect_digest="abc")


def test_a_check_leaves_the_table_and_its_folder_alone(put: Put) -> None:
    """A file that every user can write is ready, and the report says who could change it."""
    path = put(make_table())
    path.chmod(0o666)
    before = path.read_bytes(), path.stat().st_mtime_ns
    report = check(path, here=make_runtime())
    assert report.state is Readiness.READY
    assert "every user can write the file" in report.remarks[0]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert list(path.parent.iterdir()) == [path]


def test_a_stated_machine_needs_no_torch(put: Put) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from warmup.serving.check import check\n"
        "from warmup.table.store import read\n"
        "here = read(sys.argv[1]).provenance.runtime\n"
        "print(check(sys.argv[1], here=here).state)"
    )
    done = run_python("-c", code, str(put(make_table())))
    assert (done.stdout, done.stderr) == ("ready\n", "")


def test_a_gpu_is_described_by_what_torch_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The MIG profile is read off the name that CUDA gives a slice; a name may be empty."""
    torch = pytest.importorskip("torch")
    from warmup.inductor.machine import _gpu

    for name, mig, slug in (
        ("NVIDIA H100 80GB HBM3", None, "nvidia-h100-80gb-hbm3"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "1g.10gb", "nvidia-h100-80gb-hbm3-mig-1g.10gb"),
        ("A100-SXM4-40GB MIG 1c.3g.20gb", "1c.3g.20gb", "a100-sxm4-40gb-mig-1c.3g.20gb"),
        ("", None, "cuda-sm-90"),
    ):
        properties = types.SimpleNamespace(
            name=name, major=9, minor=0, multi_processor_count=16, total_memory=10 << 30
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, found=properties: found)
        device = _gpu(torch.device("cuda", 0))
        assert (device.name, device.mig, device.slug) == (name, mig, slug)


def test_rows_that_are_not_trusted_are_a_remark(put: Put) -> None:
    table = make_table()
    key, row = next(iter(table.rows.items()))
    path = put(replace(table, rows={**table.rows, key: replace(row, untrusted="it was wrong")}))
    report = check(path, here=table.provenance.runtime)
    assert report.state is Readiness.READY
    (remark,) = report.remarks
    assert remark.startswith("rows not trusted: 1 of 2; each is a miss at serving: ")
