"""Errors: each survives pickling, and its text is one line that says what to do."""

from __future__ import annotations

import pickle

from warmup.core import errors
from warmup.core.errors import MissReason, advice_for

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


def test_a_message_says_what_and_what_to_do_in_one_line() -> None:
    """Also after pickling, as between the processes of a build."""
    for error in SAMPLES:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  the bytes were made on this line
        assert (type(again), vars(again), str(again)) == (type(error), vars(error), str(error))
        assert len(str(error).splitlines()) == 1
    assert str(SAMPLES[1]) == "what; do"
    assert str(SAMPLES[10]) == "4 conflicts: k: a or b; l; m; and 1 more; do"
    miss = str(SAMPLES[16])
    assert "(not_in_table); nearest row `near` differs in m: row 1, here 2; build this " in miss
    # Each kind of error has a sample here.
    named = {each for each in vars(errors).values() if isinstance(each, type)}
    kinds = {each for each in named if issubclass(each, errors.WarmupError)}
    assert kinds == {type(sample) for sample in SAMPLES}


def test_the_error_behind_another_is_found() -> None:
    """As a cause of a cause or in a context; errors in a circle are searched once."""
    own, wrapped, inner = errors.ModelError("what"), RuntimeError("late"), ValueError("inner")
    wrapped.__cause__, inner.__context__ = inner, own
    assert errors.warmup_error_in(wrapped) is own
    inner.__context__ = wrapped
    assert errors.warmup_error_in(wrapped) is None


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
