"""What is read of files that other tools wrote, and what is refused with its reason.

The logs and the caches are what torch 2.11 and 2.13 wrote on a CPU, cut; lines of Triton templates
are in the words of torch 2.13, with stated times.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from warmup.core.errors import SettingsError
from warmup.core.rows import Family
from warmup.diagnostics.imports.autotune_log import read_autotune_log
from warmup.diagnostics.imports.entry import Entry, ImportedEntry, Unmapped
from warmup.diagnostics.imports.sources import read_sources
from warmup.keys.registry import check_key

CPU_LOG = """\
Autotune Choices Stats:
{"num_choices": 2, "num_triton_choices": 0, "best_kernel": "_linear_pointwise", "best_time": 0.01}
AUTOTUNE linear_unary(16x96, 32x96)
strides: [96, 1], [1, 0]
dtypes: torch.bfloat16, torch.bfloat16
  _linear_pointwise 0.0149 ms 100.0%\x20
  cpp_CppMicroGemmFP32Vec_5 13.5628 ms 0.1%\x20
SingleProcess AUTOTUNE benchmarking takes 4.8 seconds and 0.0 seconds precompiling for 2 choices
AUTOTUNE packed_linear(48x64, 1459233x1, 96x64)
strides: [64, 1], [1, 0], [64, 1]
dtypes: torch.float32, torch.float32, torch.float32
  cpp_CppMicroGemmFP32Vec_2 15.9942 ms 100.0%\x20
  _mkl_linear 24.0042 ms 66.6%\x20
SingleProcess AUTOTUNE benchmarking takes 4.0 seconds and 0.0 seconds precompiling for 2 choices
"""
CONFIG = (
    "ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=64, BLOCK_M=64, BLOCK_N=128, EVEN_K=True, "
    "GROUP_M=8, USE_FAST_ACCUM=False, num_stages=3, num_warps=8"
)
GPU_LOG = f"""\
AUTOTUNE addmm(512x768, 512x640, 640x768)
strides: [0, 1], [640, 1], [1, 640]
dtypes: torch.bfloat16, torch.bfloat16, torch.bfloat16
  triton_mm_persistent_tma_4 0.0061 ms 100.0% {CONFIG}
  bias_addmm 0.0065 ms 93.8%\x20
  addmm 0.0071 ms 85.9%\x20
SingleProcess AUTOTUNE benchmarking takes 1.2 seconds and 0.1 seconds precompiling for 20 choices
"""
SCALED_OFF = (
    "AUTOTUNE mm(8x4, 5x8)\nstrides: [4, 1], [8, 1]\ndtypes: torch.float16, torch.float16\n"
)
NODES = "((torch.bfloat16, [512, 640], [640, 1]), (torch.bfloat16, [640, 768], [1, 640]))"
TUNED = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8}
COMPLETE = {**TUNED, "num_stages": 3, "num_warps": 8}
MM_KEY = "mm m=512 n=768 k=640 bf16 a=row b=col out=bf16 | epilogue=none"
MODULE = "c3goahaqe4x45wlnliypa6m7ihk75cnanqilm2wwp5c4htat3g74"
TEMPLATE = """
@triton_heuristics.template(

num_stages=3,
num_warps=8,
triton_meta={'signature': {}},
)
@triton.jit
def triton_mm(arg_A, arg_B, out_ptr0):
    EVEN_K : tl.constexpr = True
    BLOCK_M : tl.constexpr = 64
    BLOCK_N : tl.constexpr = 128
    BLOCK_K : tl.constexpr = 64
    GROUP_M : tl.constexpr = 8
"""
POINTWISE = """
@triton_heuristics.pointwise(
    size_hints={'x': 1024},
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*bf16', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}},
)
@triton.jit
def triton_poi_fused_relu_0(in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 1024
"""
BEST = {
    "XBLOCK": 256,
    "num_warps": 4,
    "num_stages": 1,
    "configs_hash": "ab",
    "found_by_coordesc": False,
    "time_taken_ms": 3,
    "triton_cache_hash": "X",
}


def written(folder: Path, name: str, content: object) -> Path:
    """Write *content*, text or JSON, to the file *name* below *folder*, and return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def read(*paths: Path) -> list[Entry]:
    return list(read_sources(paths))


def mapped(entry: Entry) -> ImportedEntry:
    assert isinstance(entry, ImportedEntry), entry
    check_key(entry.key)
    return entry


def reason(entry: Entry) -> str:
    assert isinstance(entry, Unmapped), entry
    return entry.reason


def winner_in(entry: Entry) -> str:
    config = mapped(entry).config
    assert config is not None, entry
    return config.winner.short


def test_a_log_of_a_cpu_gives_problems_and_library_kernels(tmp_path: Path) -> None:
    """Each block is a problem; the library's kernel is complete, a C++ template is not."""
    first, second = map(mapped, read(written(tmp_path, "server.log", CPU_LOG)))
    assert first.key == "linear_unary m=16 n=32 k=96 bf16 a=row b=packed out=bf16 | epilogue=none"
    assert first.config is not None
    assert (str(first.config.winner), first.config.time_us) == ("aten::_linear_pointwise", 14.9)
    assert first.origin == "server.log:3"
    assert second.key.startswith(
        "packed_linear m=48 n=96 k=64 f32 a=row b=packed out=f32 fp32=ieee"
    )
    assert second.config is None
    assert "blocks of a C++ template" in second.lacks


def test_a_template_in_a_log_keeps_what_is_tuned_of_it(tmp_path: Path) -> None:
    """Blocks, group, stages and warps are taken; the rest follows from the operands."""
    (entry,) = map(mapped, read(written(tmp_path, "a.log", GPU_LOG)))
    assert entry.key == (
        "addmm m=512 n=768 k=640 bf16 a=row b=col bias=1d out=bf16 | epilogue=none"
    )
    assert entry.config is not None
    winner = entry.config.winner
    assert (winner.family, winner.uid) == (Family.TEMPLATE, "triton::mm_persistent_tma")
    assert dict(winner.kwargs) == COMPLETE
    assert (entry.config.time_us, entry.config.library_us) == (6.1, 6.5)


def test_float32_products_in_tf32_are_another_problem(tmp_path: Path) -> None:
    """Where a candidate was allowed tf32, the key says so."""
    text = GPU_LOG.replace("bfloat16", "float32").replace("ALLOW_TF32=False", "ALLOW_TF32=True")
    (entry,) = map(mapped, read(written(tmp_path, "a.log", text)))
    assert " fp32=tf32 " in entry.key


def test_a_log_may_be_compressed_and_prefixed(tmp_path: Path) -> None:
    """Times before the lines, and blocks of ranks among each other, do not matter."""
    lines = [f"[rank{rank}]: {line}" for line in GPU_LOG.splitlines() for rank in (0, 1)]
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress("\n".join(f"2026-01-02 {line}" for line in lines).encode()))
    assert [winner_in(entry) for entry in read(path)] == [
        "triton::mm_persistent_tma 64x128x64 w8 s3"
    ] * 2


def test_a_damaged_archive_is_one_error(tmp_path: Path) -> None:
    """Whatever the decompressor makes of bits that flipped."""
    path, whole = tmp_path / "a.log.gz", gzip.compress(GPU_LOG.encode())
    for place in range(10, len(whole) - 8, 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(SettingsError):
            read(path)


@pytest.mark.parametrize("first", ["[rank0]: started", "[W1123 10:00:00.1 a.cpp:12] Warning: x"])
def test_a_log_may_begin_with_a_bracket(tmp_path: Path, first: str) -> None:
    """Ranks and torch's warnings begin so, and no file of JSON that is read does."""
    (entry,) = read(written(tmp_path, "a.log", f"{first}\n{GPU_LOG}"))
    assert winner_in(entry) == "triton::mm_persistent_tma 64x128x64 w8 s3"


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("AUTOTUNE mm(8x4, 4x8)\n", "no strides and dtypes"),
        (SCALED_OFF, "do not fit together"),
        (SCALED_OFF.replace("mm(8x4, 5x8)", "mm(8x4)"), "different operands"),
        (SCALED_OFF.replace("float16, torch.float16", "float16, bad.name"), "no dtype"),
        (SCALED_OFF.replace("mm(", "convolution("), "padding of the convolution"),
        (SCALED_OFF.replace("mm(", "flex_attention("), "no row answers the op flex_attention"),
        (SCALED_OFF.replace("8x4", "8x99999999999999"), "no sizes"),
    ],
)
def test_a_block_that_is_no_problem_is_said_with_its_line(
    tmp_path: Path, block: str, why: str
) -> None:
    """It is named by file and line, with the reason."""
    (entry,) = read(written(tmp_path, "a.log", f"noise\n{block}"))
    assert why in reason(entry)
    assert entry.origin == "a.log:2"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("triton_mm_4 0.1 ms 100.0% BLOCK_M=64", "BLOCK_N is not given"),
        (f"triton_mm_4 0.1 ms 100.0% {CONFIG.replace('_M=64', '_M=63')}", "BLOCK_M=63 is no value"),
        ("decompose_k_mm_2 0.1 ms 100.0%", "k_split is not given"),
        ("cutlass_x 0.1 ms 100.0%", "no kernel that a row can name"),
        ("triton_mm_4 inf ms 100.0% ", "no choice has a time"),
    ],
)
def test_a_choice_that_is_not_complete_leaves_the_problem(line: str, why: str) -> None:
    """The problem is kept without a config, and what is missing is said."""
    block = SCALED_OFF.replace("5x8", "4x8").splitlines()
    (entry,) = read_autotune_log([*block, f"  {line}"], "a.log")
    assert mapped(entry).config is None
    assert why in mapped(entry).lacks


def test_a_lookup_table_gives_complete_configs_without_times(tmp_path: Path) -> None:
    """Keys with a device, with scalars and without; each config is an entry of its own."""
    config = {"template_id": "triton::mm", "template_hash": "0123456789abcdef", **COMPLETE}
    bias = NODES.replace("((", "((torch.bfloat16, [512, 768], [0, 1]), (", 1)
    document = {
        f"{NODES}+mm": [config, {"template_id": "aten::mm"}],
        f"NVIDIA H100+{bias}+alpha=2&beta=1+addmm": [{"template_id": "triton::mm", **TUNED}],
        "nonsense+mm": [config],
    }
    first, second, third, fourth = read(written(tmp_path, "table.json", document))
    assert (mapped(first).key, winner_in(first)) == (MM_KEY, "triton::mm 64x128x64 w8 s3")
    assert winner_in(second) == "aten::mm"
    assert " bias=1d alpha=2 " in mapped(third).key
    assert mapped(third).lacks == "num_stages is not given"
    assert reason(fourth) == "not a key of a lookup table"


def cache_with(choice: str, precision: str = "highest") -> dict[str, Any]:
    """Return what inductor writes of one product, of which *choice* was the fastest."""
    first = "('cuda', 'torch.bfloat16', 512, 640, 640, 1, 0)"
    nodes = f"[{first}, ('cuda', 'torch.bfloat16', 640, 768, 1, 640, 0)]"
    times = {choice: 0.0061, "mm-cd5psz4hpk4zkst35kaqy4c": 0.0065}
    return {"system": {"hash": "44"}, "cache": {"mm": {nodes: {precision: times}}}}


def test_a_cache_folder_gives_the_template_of_the_source_beside_it(tmp_path: Path) -> None:
    """The config is read as text from the template's generated source."""
    written(tmp_path, "cache/44136fa3", cache_with(f"triton_mm-{MODULE}"))
    written(tmp_path, f"{MODULE[1:3]}/{MODULE}.py", TEMPLATE)
    (entry,) = map(mapped, read(tmp_path))
    assert (entry.key, winner_in(entry)) == (MM_KEY, "triton::mm 64x128x64 w8 s3")
    assert entry.config is not None
    assert (entry.config.time_us, entry.config.library_us) == (6.1, 6.5)


def test_an_unreadable_file_of_a_cache_folder_costs_itself_only(tmp_path: Path) -> None:
    """JSON that is cut is named with its reason; the other file of the folder is read."""
    written(tmp_path, "cache/1", '{"cache": {')
    written(tmp_path, "cache/2", cache_with("mm-x"))
    skipped, entry = read(tmp_path)
    assert isinstance(skipped, Unmapped)
    assert (skipped.origin, skipped.is_file) == ("1", True)
    assert skipped.reason.startswith("not JSON")
    assert mapped(entry).key == MM_KEY


def test_a_choice_that_failed_is_passed_over(tmp_path: Path) -> None:
    """Inductor writes its time as Infinity, which is no JSON; the others have times."""
    document = cache_with("mm-x")
    choices = document["cache"]["mm"][next(iter(document["cache"]["mm"]))]["highest"]
    choices[f"triton_mm-{MODULE}"] = float("inf")
    path = written(tmp_path, "cache/1", document)
    assert "Infinity" in path.read_text(encoding="utf-8")
    assert winner_in(*read(tmp_path)) == "aten::mm"


@pytest.mark.parametrize(
    ("scalar", "spelled"), [("0.08838834764831845", "0.0883883"), ("1e-05", "1e-05")]
)
def test_alpha_is_read_as_python_spells_it(tmp_path: Path, scalar: str, spelled: str) -> None:
    """The scale of an attention with heads of 128 has 17 digits, and stays in the key."""
    operand = "('cuda', 'torch.bfloat16', 4, 8, 8, 64, 8, 1, 0)"
    times = {f"baddbmm-alpha={scalar}-beta=1-ab": 0.01}
    cache = {"baddbmm": {f"[{operand}, {operand}, {operand}]": {"highest": times}}}
    (entry,) = read(written(tmp_path, "cache/1", {"system": {}, "cache": cache}))
    assert f" alpha={spelled} " in mapped(entry).key


def test_an_alpha_that_is_no_number_is_said(tmp_path: Path) -> None:
    """The key would have an alpha of 1 otherwise."""
    document = cache_with("mm-alpha=s0-beta=1-ab")
    (entry,) = read(written(tmp_path, "cache/1", document))
    assert reason(entry) == "alpha: no plain number"


@pytest.mark.parametrize("ms", ["999999999999.0", "0.0000000001"])
def test_a_time_that_no_table_holds_is_left_out(ms: str) -> None:
    """The config is kept without a time, so that the table with it can be read back."""
    block = SCALED_OFF.replace("5x8", "4x8").splitlines()
    (entry,) = read_autotune_log([*block, f"  mm {ms} ms 100.0%"], "a.log")
    config = mapped(entry).config
    assert config is not None
    assert (config.time_us, config.library_us) == (None, None)


@pytest.mark.parametrize("module", [MODULE, "../../etc/passwd", "c.py"])
def test_a_template_without_its_source_is_a_problem_alone(tmp_path: Path, module: str) -> None:
    """No source in the folder, or a name that is no hash: the problem is kept."""
    written(tmp_path, "cache/44136fa3", cache_with(f"triton_mm-{module}"))
    (entry,) = map(mapped, read(tmp_path))
    assert (entry.config, "source" in entry.lacks) == (None, True)


def test_what_the_library_fused_is_not_guessed(tmp_path: Path) -> None:
    """A cache of torch 2.13 on a CPU: a linear that has a gelu in the library's call."""
    nodes = (
        "[('cpu', 'torch.bfloat16', 16, 64, 64, 1, 0), ('cpu', 'torch.bfloat16', 96, 64, 1, 0, 0)]"
    )
    choice = "_linear_pointwise-algorithm='none'-attr='gelu'-scalars=[]-capp6kaexa5kuhlb"
    cache = {"linear_unary": {nodes: {"highest": {choice: 11.99}}}}
    path = written(tmp_path, "cache/1", {"system": {"hash": "1"}, "cache": cache})
    (entry,) = read(path)
    assert reason(entry) == "fused with gelu: its scalars are not noted"


def test_a_launch_config_belongs_to_the_one_kernel_that_has_its_blocks(tmp_path: Path) -> None:
    """A .best_config names no kernel: the only one with these blocks in its folder is taken."""
    written(tmp_path, "ab/caaa.py", POINTWISE)
    written(tmp_path, "ab/x.best_config", BEST)
    (entry,) = map(mapped, read(tmp_path))
    assert entry.key.startswith("launch triton_poi_fused_relu x=1024 args=*bf16,i32 source=")
    assert winner_in(entry) == "pointwise 256 w4 s1"


@pytest.mark.parametrize(
    ("kernels", "config", "why"),
    [
        ([POINTWISE, POINTWISE.replace("1024", "2048")], BEST, "2 kernels in its folder"),
        ([], BEST, "no kernel in its folder"),
        ([POINTWISE], {**BEST, "R0_BLOCK": 8}, "no kernel in its folder"),
        ([POINTWISE], {**BEST, "XBLOCK": "256"}, "'XBLOCK' has no number"),
        ([POINTWISE], {"XBLOCK": 1}, "not the form"),
        ([POINTWISE], {**BEST, "extra_options": {}}, "extra_options"),
        ([POINTWISE], "[1", "not JSON"),
    ],
)
def test_a_launch_config_without_its_kernel_is_said(
    tmp_path: Path, kernels: list[str], config: object, why: str
) -> None:
    """Several kernels or none could be meant, or it has another form: it is not mapped."""
    for number, kernel in enumerate(kernels):
        written(tmp_path, f"ab/c{number}.py", kernel)
    written(tmp_path, "ab/x.best_config", config)
    (entry,) = read(tmp_path)
    assert why in reason(entry)


def test_a_folder_that_is_not_read_whole_has_no_only_kernel(tmp_path: Path) -> None:
    """Another kernel with these blocks may be among the files that were not read."""
    written(tmp_path, "ab/caaa.py", POINTWISE)
    written(tmp_path, "ab/x.best_config", BEST)
    for number in range(256):
        written(tmp_path, f"ab/d{number}.py", "")
    (entry,) = read(tmp_path)
    assert reason(entry) == "its folder has more than 256 Python files"


def test_the_code_of_a_graph_is_no_kernel(tmp_path: Path) -> None:
    """Beside a kernel that it quotes it would be a second kernel with these blocks."""
    graph = f"triton_0 = async_compile.triton('triton_0', '''{POINTWISE}''', device_str='cuda')\n"
    written(tmp_path, "ab/caaa.py", POINTWISE)
    written(tmp_path, "ab/cbbb.py", f"{graph}class Runner: pass\n")
    written(tmp_path, "ab/x.best_config", BEST)
    assert winner_in(*read(tmp_path)) == "pointwise 256 w4 s1"


@pytest.mark.parametrize("hints", ["{[]: 1}", "{'x': " + "-" * 100_000 + "1}"])
def test_source_that_python_cannot_evaluate_is_no_kernel(tmp_path: Path, hints: str) -> None:
    """A list as a name and a nesting without end are passed over; the other kernel is taken."""
    written(tmp_path, "ab/caaa.py", POINTWISE)
    written(tmp_path, "ab/cbbb.py", POINTWISE.replace("{'x': 1024}", hints))
    written(tmp_path, "ab/x.best_config", BEST)
    assert winner_in(*read(tmp_path)) == "pointwise 256 w4 s1"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("N=4096,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128]", "blocks"),
        ("E=8,N=7168,device_name=NVIDIA_H200", "mixtures of experts"),
        ("N=4096,K=7168,device_name=NVIDIA_H200,dtype=int8_w8a8", "dtype=int8_w8a8"),
    ],
)
def test_configs_of_vllm_that_no_row_can_answer_are_said(
    tmp_path: Path, name: str, why: str
) -> None:
    """The whole file is one entry, with its reason."""
    (entry,) = read(written(tmp_path, f"{name}.json", {"1": {"BLOCK_SIZE_M": 16}}))
    assert why in reason(entry)


def test_row_wise_configs_of_vllm_are_problems_without_a_config(tmp_path: Path) -> None:
    """The sizes are problems of a scaled product; the config is of a kernel of vLLM's own."""
    name = (
        "N=15360,K=3840,device_name=X,dtype=fp8_w8a8_per_token,input_dtype=float8_e4m3fn,"
        "out_dtype=bfloat16.json"
    )
    config = {"BLOCK_SIZE_M": 16}
    path = written(tmp_path, name, {"triton_version": "3.6.0", "1": config, "64": config})
    first, second = map(mapped, read(path))
    assert first.key == (
        "scaled_mm m=1 n=15360 k=3840 f8_e4m3fn a=row b=col scale=f32[1,1]:f32[1,15360] "
        "out=bf16 | epilogue=none"
    )
    assert (second.config, "vLLM's own kernel" in second.lacks) == (None, True)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.log", "no block", "no AUTOTUNE block"),
        ("a.json", {"a": 1}, "neither an autotune log"),
        ("a.json", '{"a": 1, "a": 2}', "appears twice"),
        ("a.json", '{"a":' * 100_000, "nested too deeply"),
        ("a.json", '{"a": NaN}', "neither an autotune log"),
        ("empty/note.txt", "", "no inductor cache folder"),
    ],
)
def test_a_file_of_no_known_form_is_refused(
    tmp_path: Path, name: str, content: object, why: str
) -> None:
    """The error names the file and says what is wrong."""
    path = written(tmp_path, name, content)
    with pytest.raises(SettingsError, match=why):
        read(path.parent if path.suffix == ".txt" else path)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    """A file that runs code when it is unpickled is read as a log without blocks."""
    path = tmp_path / "cache.pkl"
    path.write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(SettingsError, match="no AUTOTUNE block"):
        read(path)
    assert not (Path.cwd() / "ran").exists()


def test_no_line_takes_long(tmp_path: Path) -> None:
    """Lines that begin as a block does, and never end, cost time linear in their length."""
    hostile = [
        "AUTOTUNE mm(" + "8x4, " * 20_000,
        *SCALED_OFF.splitlines()[:1],
        "strides: [" + "1, [" * 20_000,
        "dtypes: " + "torch.f, " * 20_000,
        "a " * 30_000,
        "x" * 200_000 + " 0.1 ms 100.0% " + "A=1, " * 20_000,
    ]
    path = written(tmp_path, "a.log", "\n".join(hostile * 20))
    assert {reason(entry)[:20] for entry in read(path)} == {"no strides and dtype"}
