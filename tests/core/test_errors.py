"""Errors: each survives pickling, and its text is one line that says what to do."""

from __future__ import annotations

import pickle
import re

from warmup.core import errors
from warmup.core.errors import MissReason, advice, advice_for

SAMPLES = [
    errors.WarmupError("what"),
    errors.SettingsError("what", "do"),
    errors.ProblemError("not a GEMM key"),
    errors.ModelError("what", "do"),
    errors.SizeError("what", "do"),
    errors.TableError("what"),
    errors.TableNotFoundError("no table at x", ("a", "b")),
    errors.TableFormatError("x.json", "/rows/gemm", "unknown field"),
    errors.TableSchemaError("x.json", 2, 1),
    errors.TableMismatchError("x.json", ("cuda: table 12, here 13", "driver"), "do"),
    errors.TableMergeError(("k: a or b", "l", "m", "n"), "do"),
    errors.TableWriteError("x.json", "No space left on device", "do"),
    errors.BuildError("what", "do"),
    errors.NothingRecordedError("what", "do"),
    errors.OutputMismatchError("what", "do"),
    errors.BundleError("x.bundle", "it is damaged"),
    errors.MissError("key", "not_in_table", "near", ("m: row 1, here 2",)),
    errors.UncoveredError("custom_op"),
    errors.WeightChangedError("self.fc.weight", 2, "forward (model.py:3)"),
    errors.ForeignGraphError(None, "d"),
    errors.AdapterError("what"),
    errors.UnsupportedTorchError("2.9.0", "2.11 to 2.15"),
    errors.InductorChangedError("torch._inductor.config:freezing is gone"),
]
WARNINGS = {*(errors.WarmupWarning, errors.StaleTableWarning, errors.ContradictionWarning)}
TEXTS = {
    errors.SettingsError: "what; do",
    errors.TableNotFoundError: (
        "no table at x (searched: a, b); build one with `warmup build` or name it explicitly"
    ),
    errors.TableFormatError: (
        "x.json: not a valid table at /rows/gemm: unknown field; restore the file or build it again"
    ),
    errors.TableSchemaError: (
        "x.json: schema 2 is newer than this warmup reads (1); "
        "upgrade inductor-warmup or build the table again"
    ),
    errors.TableMismatchError: "x.json: cuda: table 12, here 13; driver; do",
    errors.TableMergeError: "4 conflicts: k: a or b; l; m and 1 more; do",
    errors.TableWriteError: "x.json: cannot write the table: No space left on device; do",
    errors.MissError: (
        "no row answers `key` (not_in_table); nearest row `near` differs in m: row 1, here 2; "
        'build this bucket, or pad to one that was built; or serve with on_miss="fallback"'
    ),
    errors.ForeignGraphError: (
        "a loaded graph was compiled without a table, and table d is installed; compile the graph "
        "again, and make the table's digest part of the key under which it is kept"
    ),
    errors.UnsupportedTorchError: (
        "torch 2.9.0 is not supported (supported: 2.11 to 2.15); "
        "install a supported torch or a newer inductor-warmup"
    ),
}


def classes_of_the_module() -> set[type]:
    classes = {value for value in vars(errors).values() if isinstance(value, type)}
    return {
        each
        for each in classes
        if each.__module__ == errors.__name__ and issubclass(each, Exception)
    }


def test_every_error_has_a_sample_and_a_place_in_the_drawing() -> None:
    """The tree in the module's docstring has each error and warning of the module, once."""
    drawn = re.findall(r"(?:\|- |^    )(\w+)", errors.__doc__ or "", re.MULTILINE)
    assert sorted(drawn) == sorted(each.__name__ for each in classes_of_the_module())
    # Every error has a sample here.
    assert {type(sample) for sample in SAMPLES} == classes_of_the_module() - WARNINGS


def test_an_error_survives_pickling() -> None:
    for error in SAMPLES:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  the bytes were made on this line
        assert (type(again), vars(again), str(again)) == (type(error), vars(error), str(error))


def test_a_message_says_what_and_what_to_do_in_one_line() -> None:
    for error in SAMPLES:
        assert len(str(error).splitlines()) == 1
    # The text of an error names what is wrong, where, and what to do.
    for error in [s for s in SAMPLES if type(s) in TEXTS]:
        assert str(error) == TEXTS[type(error)]


def test_errors_are_also_what_python_calls_them() -> None:
    """Callers who catch the built-in class catch warmup's."""
    for kind, builtin in (
        (errors.SettingsError, ValueError),
        (errors.ProblemError, ValueError),
        (errors.TableNotFoundError, FileNotFoundError),
        (errors.TableWriteError, OSError),
    ):
        assert issubclass(kind, builtin)


def test_every_error_ends_a_command_with_three() -> None:
    for error in SAMPLES:
        assert error.exit_code == 3


def test_a_miss_without_neighbour_says_so() -> None:
    assert "the table has no row for this op" in str(errors.MissError("key", "not_in_table"))


def _raised(
    error: BaseException, cause: BaseException | None, context: BaseException | None
) -> BaseException:
    error.__cause__, error.__context__ = cause, context
    return error


def test_the_error_behind_another_is_found() -> None:
    own = errors.MissError("key", "not_in_table")
    wrapped = _raised(RuntimeError("backend"), _raised(ValueError("inner"), own, None), None)
    assert errors.warmup_error_in(wrapped) is own
    # The error in a context is found.
    own = errors.ModelError("what")
    assert errors.warmup_error_in(_raised(RuntimeError("late"), None, own)) is own
    # Errors that are each other's cause are searched once.
    first, second = RuntimeError("first"), RuntimeError("second")
    _raised(first, second, None)
    _raised(second, first, None)
    assert errors.warmup_error_in(first) is None


def test_a_setting_of_the_program_is_named_and_no_bucket() -> None:
    """With both values; sizes, a hostile log and other reasons keep the reason's advice."""
    op = "op: row packed_linear, here linear_unary"
    missing, device = MissReason.NOT_IN_TABLE, MissReason.WRONG_DEVICE
    threads = "device.threads: table 2, here 1"
    named = (
        (missing, ("fp32: row ieee, here bf16", op), 'set_float32_matmul_precision("highest")'),
        (missing, ("fp32: row tf32, here ieee",), 'set_float32_matmul_precision("high")'),
        (missing, ("dtype: row f32, here bf16", "fp32: row ieee, here absent"), "autocast"),
        (device, (threads,), "torch.set_num_threads(2)"),
    )
    for reason, differs, text in named:
        assert text in advice_for(reason, differs), differs
        assert "this bucket" not in advice_for(reason, differs), differs
    plain = (
        (missing, ()),
        (missing, ("m: row 8, here 16",)),
        (missing, ("m: row 8, here 16", "fp32: row ieee, here bf16")),
        (missing, ("fp32: row \x1b[31m, here bf16",)),
        (missing, ("dtype: row f32; rm -rf, here bf16",)),
        (device, (threads, "device.arch: table x, here y")),
        (MissReason.UNTRUSTED, ("fp32: row ieee, here bf16",)),
    )
    for reason, differs in plain:
        assert advice_for(reason, differs) == reason.advice, differs


def test_each_piece_of_advice_comes_once() -> None:
    """An unknown reason of a log has none."""
    assert advice([("x", ()), ("dynamic_dim", ()), ("dynamic_dim", ("m: row 1, here 2",))]) == [
        f"dynamic_dim: {MissReason.DYNAMIC_DIM.advice}"
    ]
