"""Run warmup's templates for few rows in Triton's interpreter, as generated for the stated H100.

    echo '{"winner": "dots", "op": "mm", "m": 1, "n": 70, "k": 200}' | python interpret_few_rows.py

One case a line on stdin, one result a line on stdout; cases as for cuda_gemms.py, all of which
are linears here. The operands are f16, since the interpreter multiplies the bits of bf16. ``tile``
has kwargs of the template, ``rows`` is the number of rows of a call where ``m`` is a range, and
``poison`` puts NaN and infinities into the operands. The result has the kernels that were
generated, how far the output is from a reference (relative L2), whether a second run writes the
same bits, and whether the same values are finite as in the reference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import cuda_gemms
import h100
import torch
from h100 import Case

_DECORATOR = re.compile(r"@triton_heuristics\.template\(.*?^\)\n", re.DOTALL | re.MULTILINE)
_CALL = r"{}\.run\((.*?), stream="


def call(code: str, tensors: Sequence[torch.Tensor], rows: int, columns: int) -> torch.Tensor:
    """Run the only kernel of *code* on *tensors*, and return what it wrote."""
    ((name, source),) = h100.kernels_in(code)
    space: dict[str, Any] = {}
    exec(compile(_DECORATOR.sub("", source), name, "exec"), space)  # noqa: S102  inductor's code
    count = len(re.findall(r"^def \w+\((.*?)\):", source, re.MULTILINE)[0].split(","))
    words = [word.strip() for word in re.findall(_CALL.format(name), code)[0].split(",")]
    output = torch.full((rows, columns), torch.nan, dtype=torch.float16)
    given = {f"arg{index}_1": tensor for index, tensor in enumerate(tensors)}
    sizes = {word: rows for word in words if re.fullmatch(r"s\d+|arg\d+_1", word)}
    values = [given.get(w, output if w.startswith("buf") else sizes.get(w)) for w in words[:count]]
    # The grid of the template, which inductor passes after the arguments.
    block_m, block_n = (
        int(re.findall(rf"{size}\s*:\s*tl\.constexpr = (\d+)", source)[0])
        for size in ("BLOCK_M", "BLOCK_N")
    )
    grid = (-(-rows // block_m) * -(-columns // block_n),)
    space[name][grid](*values)
    return output


def answer(case: Case) -> dict[str, Any]:
    """Generate the kernel of the case, run it twice, and compare."""
    case = {"op": "mm", "linear": True, "epilogue": False, **case}
    rows = cuda_gemms.rows_of(case)
    made, _ = h100.serve(lambda: cuda_gemms.lower(case), rows, options=h100.GEMM_OPTIONS)
    code: str = made[0]
    sizes, n, k = case["m"], case["n"], case["k"]
    m = case.get("rows", sizes)
    torch.manual_seed(case.get("seed", 0))
    x = torch.randn(m, k + case.get("gap", 0)).half()[:, :k]
    w = (torch.randn(n, k) / k**0.5).half()
    scales: list[torch.Tensor] = []
    if case["op"] == "scaled_mm":
        x, w = (factor.to(torch.float8_e4m3fn) for factor in (x, w * k**0.5))
        by_row = case.get("scales") == "row"
        shapes: list[tuple[int, ...]] = [(m, 1), (1, n)] if by_row else [(), ()]
        scales = [torch.rand(shape) / (k**0.5 if at else 1) for at, shape in enumerate(shapes)]
    b = torch.randn(n).half()
    if case.get("poison"):
        x[0, 1], x[-1, 0], w[n // 2, k - 1] = torch.inf, torch.nan, -torch.inf
    expected = x.double() @ w.double().T
    for scale in scales:
        expected = expected * scale.double()
    if case["op"] == "addmm":
        scalars = {"alpha": 1, "beta": 1, **case.get("scalars", {})}
        expected = scalars["alpha"] * expected + scalars["beta"] * b.double()
    if case["epilogue"]:
        expected = expected.relu() * b.double()
    found = [call(code, (x, w, b, *scales), m, n) for _ in range(2)]
    finite = expected.isfinite()
    apart = (found[0].double() - expected)[finite].norm() / expected[finite].norm()
    return {
        "kernels": [name for name, _ in h100.kernels_in(code)],
        "externs": re.findall(r"extern_kernels\.(\w+)\(", code),
        "apart": apart.item() if finite.any() else 0.0,
        "same": torch.equal(found[0].view(torch.int16), found[1].view(torch.int16)),
        "finite": torch.equal(found[0].isfinite(), finite),
    }


if __name__ == "__main__":
    h100.answer_each(answer)
