"""What a ``fleet.toml`` may say, and the files that go with it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.core.errors import SettingsError
from warmup.diagnostics.misses import encode_problems
from warmup.tuning.cluster import fleet_file
from warmup.tuning.cluster.fleet_file import FleetModel, read_fleet


def test_models_have_the_options_of_a_build(tmp_path: Path) -> None:
    """Buckets and inputs are named as on the command line, and a weight is 1 unless it is named."""
    path = tmp_path / "fleet.toml"
    path.write_text(
        '[[model]]\nmodel = "a.py:A"\nseqlens = "16,64"\ndtype = "bf16"\nweight = 3\n'
        '[[model]]\nmodel = "b.py"\ndims = ["batch=1"]\ninputs = ["x=[batch,8]:f32"]\n'
    )
    assert read_fleet(path).models == (
        FleetModel(model="a.py:A", options=("--seqlens", "16,64", "--dtype", "bf16"), weight=3.0),
        FleetModel(model="b.py", options=("--dims", "batch=1", "--input", "x=[batch,8]:f32")),
    )


def test_misses_are_read_beside_the_file(tmp_path: Path, make_key: Callable[..., str]) -> None:
    """Each problem of the document has the weight of the document."""
    (tmp_path / "m.json").write_text(encode_problems({(make_key(), "not_in_table"): 4}, ()))
    path = tmp_path / "fleet.toml"
    path.write_text('[[problems]]\nfile = "m.json"\nweight = 0.5\n')
    ((problem, weight),) = read_fleet(path).missed
    assert (problem.key, problem.count, weight) == (make_key(), 4, 0.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no model and no problems"),
        ("[[model]\n", "cannot be read"),
        ("[[models]]\n", "models: unknown"),
        ('model = "a.py"\n', r"write \[\[model\]\]"),
        ('[[model]]\nseqlens = "8"\n', "model is missing"),
        ('[[model]]\nmodel = "--help"\n', "model is missing, or no text"),
        ('[[model]]\nmodel = "a.py"\nsizes = "8"\n', "has sizes; known are"),
        ('[[model]]\nmodel = "a.py"\nweight = 0\n', "is not above 0"),
        ('[[model]]\nmodel = "a.py"\nweight = true\n', "a weight is no number"),
        ('[[model]]\nmodel = "a.py"\ninputs = "x"\n', "inputs of a model is no list"),
        ("[[problems]]\nweight = 1\n", "file is missing"),
    ],
)
def test_another_form_is_refused(text: str, said: str, tmp_path: Path) -> None:
    """The error names the file and what is wrong in it."""
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=said):
        read_fleet(path)


def test_the_folder_is_sent_without_hidden_files_and_links(tmp_path: Path) -> None:
    """Models import what lies beside them; a link may point out of the folder."""
    (tmp_path / "fleet.toml").write_text('[[model]]\nmodel = "m/a.py"\n')
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "a.py").write_text("A = 1\n")
    (tmp_path / ".secret").write_text("x")
    (tmp_path / "link").symlink_to("/etc/hostname")
    archive = read_fleet(tmp_path / "fleet.toml").archive()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.getnames() == ["fleet.toml", "m/a.py"]


def test_a_folder_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is sent to each device, so that weights do not belong into it."""
    monkeypatch.setattr(fleet_file, "_MOST_FOLDER_BYTES", 4096)
    (tmp_path / "fleet.toml").write_text('[[model]]\nmodel = "a.py"\n')
    (tmp_path / "weights.bin").write_bytes(bytes(5000))
    with pytest.raises(SettingsError, match="files, which are sent to each device"):
        read_fleet(tmp_path / "fleet.toml").archive()
