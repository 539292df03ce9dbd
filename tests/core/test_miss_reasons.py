"""What is said to do about a miss follows from what the nearest row differs in."""

from __future__ import annotations

from warmup.core.errors import MissReason, advice, advice_for


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
