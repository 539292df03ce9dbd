"""`candidates` and `forced`: the algorithms of cuBLASLt for a product, as candidates and as rows.

torch calls the library with the first answer of its heuristics. Where the backends of a search have
`CUBLASLT`, the first `MOST_ANSWERS` are candidates, and then those that `variations` makes of the
fastest. A winner names an algorithm by the numbers of its config, as TunableOp of torch 2.15 does,
and the version of cuBLASLt, without which they mean nothing. cuBLASLt itself makes the algorithm of
them, and checks it for each product.

Generated code calls a function of `CHOICES` with the winner's kwargs, so that a graph from a cache
needs nothing else. A call that the algorithm cannot compute, such as of an operand at an unaligned
address, is torch's own call: `FALLBACKS` counts them by op and reason, and an event reports them.

cuBLASLt's matrices lie by columns, torch's by rows: it computes out.t() as w.t() @ x.t().
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import CDLL, Structure, byref, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch._dynamo.device_interface import get_interface_for_device
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.select_algorithm import ExternKernelChoice
from torch._inductor.virtualized import V

from warmup.core.errors import MissReason
from warmup.core.events import Contradicted, logger
from warmup.core.rows import CUBLASLT, Algorithm, Winner
from warmup.inductor.gemm.key import MATRIX_DIMS, reduces_in_full, strides_of
from warmup.inductor.options import option_value
from warmup.inductor.patches import Firewall
from warmup.inductor.versions import Version

# Through it a symbol is found in the libraries that it needs: in torch's own cuBLASLt, whatever
# other is loaded too.
LIBRARY: Final = Path(torch.__file__).parent / "lib/libtorch_cuda.so"
MOST_ANSWERS: Final = 8  # cuBLASLt 13.1 has no more for products of 16 bits on an H200
MOST_WORKSPACE: Final = 2**25  # bytes, as torch has
FALLBACKS: Final = Counter[tuple[str, str]]()
_ALIGNMENT: Final = 16  # bytes, of every address
_NO_BIAS_YET: Final = 256  # an address that is never read
_MOST_PLANS: Final = 4096

# cublasLt.h and library_types.h: types, epilogues, attributes with their sizes in bytes.
_TYPES: Final = {torch.bfloat16: 14, torch.float16: 2}
_COMPUTE_F32, _F32, _BIAS = 68, 0, 4
_ATTRIBUTES: Final = {
    "transa": (3, 4), "transb": (4, 4), "epilogue": (7, 4), "bias": (8, 8), "bias_type": (26, 4),
    "workspace": (1, 8), "a": (5, 4), "b": (6, 4), "c": (7, 4), "d": (8, 4),  # of a preference
}  # fmt: skip
_CONFIG: Final = {  # by the names of TunableOp in torch 2.15 (ATen/cuda/tunable/GemmCublaslt.h)
    "id": (0, 4), "tile": (1, 4), "stages": (6, 4), "splitk": (2, 4), "red": (3, 4),
    "swizzle": (4, 4), "custom": (5, 4), "inner": (7, 2), "cluster": (8, 2),
}  # fmt: skip
# Numbers of a config that make algorithms faster on an H200; cuBLASLt refuses some for a product.
# Sums of parts of K stay in float32, which is reduction 2; 4 rounds them to 16 bits.
CHANGES: Final = (
    *({"splitk": parts, "red": 2 * (parts > 1)} for parts in (1, 2, 3, 4, 5, 6, 8, 12, 16)),
    *({"custom": number} for number in range(8)),
    *({"cluster": number} for number in range(2, 11)),
)
_VARIED: Final = 2  # algorithms, the fastest
_LETTERS: Final[Mapping[str, Any]] = {"p": c_void_p, "i": c_int, "z": c_size_t, "u": c_uint64}
_FUNCTIONS: Final = {  # which all return a cublasStatus_t, an int
    "Create": "p", "MatmulDescCreate": "pii", "MatmulDescSetAttribute": "pipz",
    "MatrixLayoutCreate": "piuuu", "MatmulPreferenceCreate": "p",
    "MatmulPreferenceSetAttribute": "pipz", "MatmulAlgoGetHeuristic": "pppppppipp",
    "MatmulAlgoInit": "piiiiiiip", "MatmulAlgoConfigGetAttribute": "pipzp",
    "MatmulAlgoConfigSetAttribute": "pipz", "MatmulAlgoCheck": "pppppppp",
    "Matmul": "ppppppppppppppzp",
}  # fmt: skip


class AlgorithmError(Exception):
    """An algorithm of cuBLASLt does not compute a product here; the text says why."""


class Answer(Structure):
    """cublasLtMatmulHeuristicResult_t; the first of the rest is its status."""

    _fields_ = (("words", c_uint64 * 8), ("workspace", c_size_t), ("rest", c_uint32 * 6))


Config = dict[str, int]


def _spell(numbers: Config) -> str:
    return "_".join(f"{name}_{value}" for name, value in numbers.items())


def _read(config: str) -> Config:
    return dict(zip(_CONFIG, map(int, re.findall("[0-9]+", config)), strict=True))


class Matrix(NamedTuple):
    """A matrix as cuBLASLt describes it: by columns, or the transpose of one by columns."""

    rows: int
    columns: int
    pitch: int
    is_transposed: bool

    @classmethod
    def of(cls, sizes: Any, strides: Any) -> Matrix:
        """Return a matrix of torch's, for the product of which it is the transpose."""
        rows, columns, first, second = *map(int, sizes), *map(int, strides)
        if second == 1 and first >= columns > 0:
            return cls(columns, rows, first, is_transposed=False)
        if first == 1 and second >= rows > 0:
            return cls(rows, columns, second, is_transposed=True)
        raise AlgorithmError("a matrix lies neither by rows nor by columns")


class Product(NamedTuple):
    """out = x @ w, with or without a bias for each column."""

    dtype: torch.dtype
    x: Matrix
    w: Matrix
    out: Matrix
    has_bias: bool

    @classmethod
    def of(cls, dtypes: set[torch.dtype], x: Any, w: Any, out: Any, bias: Any = None) -> Product:
        """Return the product of matrices that are pairs of sizes and strides."""
        dtype, *others = dtypes
        if others or dtype not in _TYPES or reduces_in_full(dtype, "cuda"):
            raise AlgorithmError("the dtypes are not one of 16 bits, or are reduced in full")
        product = cls(dtype, Matrix.of(*x), Matrix.of(*w), Matrix.of(*out), bias is not None)
        if product.out.is_transposed:
            raise AlgorithmError("the output lies by columns")
        if bias is not None:
            sizes, strides = (tuple(map(int, each)) for each in bias)
            repeats = len(sizes) == 1 or sizes[0] == 1 or strides[0] == 0
            if not repeats or (sizes[-1], strides[-1]) != (product.out.rows, 1):
                raise AlgorithmError("the bias is not one value for each column")
        return product


class Library:
    """cuBLASLt on the GPU *index*. What is made of it lives as long as this process."""

    def __init__(self, index: int) -> None:
        library = CDLL(str(LIBRARY))
        library.cublasLtGetVersion.restype = c_size_t
        self.version: int = library.cublasLtGetVersion()
        self._functions: dict[str, Any] = {one: library[f"cublasLt{one}"] for one in _FUNCTIONS}
        for name, function in self._functions.items():
            function.argtypes = [_LETTERS[letter] for letter in _FUNCTIONS[name]]
        interface: Any = get_interface_for_device("cuda")
        self.stream_of = functools.partial(interface.get_raw_stream, index)
        self.multiply = self._functions["Matmul"]
        with torch.cuda.device(index):
            self.handle = self._new("")

    def call(self, name: str, *words: Any) -> None:
        if status := self._functions[name](*words):
            raise AlgorithmError(f"status {status} of cublasLt{name}")

    def set_attribute(self, name: str, made: c_void_p, attribute: str, value: int) -> None:
        number, size = _ATTRIBUTES[attribute]
        self.call(f"{name}SetAttribute", made, number, byref(c_uint64(value)), size)

    def _new(self, name: str, *words: Any, **values: int) -> c_void_p:
        made = c_void_p()
        self.call(f"{name}Create", byref(made), *words)
        for attribute, value in values.items():
            self.set_attribute(name, made, attribute, value)
        return made

    def describe(self, product: Product, bias: int = _NO_BIAS_YET) -> list[c_void_p]:
        """Return descriptors: of the product, both factors, and the output twice."""
        kind = _TYPES[product.dtype]
        values = {"transa": int(product.w.is_transposed), "transb": int(product.x.is_transposed)}
        if product.has_bias:
            values |= {"epilogue": _BIAS, "bias": bias, "bias_type": kind}
        matrices = (product.w, product.x, product.out, product.out)
        layouts = [self._new("MatrixLayout", kind, *matrix[:3]) for matrix in matrices]
        return [self._new("MatmulDesc", _COMPUTE_F32, _F32, **values), *layouts]

    def answers(self, product: Product) -> list[Algorithm]:
        """Return algorithms for *product*, in the order of the heuristics."""
        aligned = dict.fromkeys("abcd", _ALIGNMENT)
        preference = self._new("MatmulPreference", workspace=MOST_WORKSPACE, **aligned)
        made, count = (Answer * MOST_ANSWERS)(), c_int()
        words = (*self.describe(product), preference, MOST_ANSWERS, made, byref(count))
        self.call("MatmulAlgoGetHeuristic", self.handle, *words)
        return [
            Algorithm(self.config_of(one), self.version)
            for one in made[: count.value]
            if not one.rest[0] and one.workspace <= MOST_WORKSPACE
        ]

    def config_of(self, answer: Answer) -> str:
        numbers = Config()
        for name, (number, size) in _CONFIG.items():
            value, written = c_uint64(), c_size_t()
            words = (number, byref(value), size, byref(written))
            self.call("MatmulAlgoConfigGetAttribute", byref(answer), *words)
            numbers[name] = value.value
        return _spell(numbers)

    def make_answer(self, product: Product, described: list[c_void_p], config: str) -> Answer:
        """Return the algorithm of this *config*, with its workspace for *product*, as *described*.

        Raises AlgorithmError where cuBLASLt does not compute it so.
        """
        made, checked, kind = Answer(), Answer(), _TYPES[product.dtype]
        numbers, kinds = _read(config), (_COMPUTE_F32, _F32, *[kind] * 4)
        self.call("MatmulAlgoInit", self.handle, *kinds, numbers.pop("id"), byref(made))
        for name, value in numbers.items():
            number, size = _CONFIG[name]
            words = (number, byref(c_uint64(value)), size)
            self.call("MatmulAlgoConfigSetAttribute", byref(made), *words)
        self.call("MatmulAlgoCheck", self.handle, *described, byref(made), byref(checked))
        if checked.rest[0] or checked.workspace > MOST_WORKSPACE:
            raise AlgorithmError(f"status {checked.rest[0]}, workspace {checked.workspace}")
        made.workspace = checked.workspace
        return made


class Plan:
    """How *library* computes *product* by an *algorithm*; an AlgorithmError where it does not.

    Threads share a plan, which is locked: cuBLASLt reads the address of a bias from a descriptor.
    """

    def __init__(
        self, library: Library, product: Product, algorithm: Algorithm, bias: int = _NO_BIAS_YET
    ) -> None:
        config, cublas = algorithm
        if cublas != library.version:
            raise AlgorithmError(f"the row is of cuBLASLt {cublas}, here is {library.version}")
        self._library, self._bias, self._lock = library, bias, threading.Lock()
        self._described = library.describe(product, bias)
        self._one, self._zero = byref(c_float(1.0)), byref(c_float(0.0))
        answer = library.make_answer(product, self._described, config)
        self._answer, self._workspace = byref(answer), int(answer.workspace)

    def run(self, x: Any, w: Any, bias: Any, out: torch.Tensor) -> None:
        at_x, at_w, at_out = x.data_ptr(), w.data_ptr(), out.data_ptr()
        at_bias = 0 if bias is None else bias.data_ptr()
        if (at_x | at_w | at_out | at_bias) % _ALIGNMENT:
            raise AlgorithmError("an address is not aligned")
        library, (made, of_w, of_x, of_out, _), room = self._library, self._described, None
        if self._workspace:
            # The allocator keeps the memory for this stream, and during a capture for the graph.
            room = torch.empty(self._workspace, dtype=torch.uint8, device=out.device)
        at_room = None if room is None else room.data_ptr()
        factors = (library.handle, made, self._one, at_w, of_w, at_x, of_x, self._zero)
        result = (at_out, of_out, at_out, of_out, self._answer, at_room, self._workspace)
        with self._lock:
            if at_bias != self._bias:
                library.set_attribute("MatmulDesc", made, "bias", at_bias)
                self._bias = at_bias
            status = library.multiply(*factors, *result, library.stream_of())
        if status:
            raise AlgorithmError(f"status {status} of cublasLtMatmul")


@functools.cache
def library_on(index: int) -> Library | None:
    """Return torch's own cuBLASLt on the GPU *index*; None where it cannot be called."""
    try:
        return Library(index)
    except (OSError, AttributeError, AlgorithmError) as error:
        logger.warning("no algorithms of cuBLASLt: %s", error)
        return None


_is_timing: Final = threading.Event()
_plans: Final[dict[tuple[Any, ...], Plan | AlgorithmError]] = {}


def multiply(x: Any, w: Any, bias: Any, out: Any, named: tuple[str, int]) -> None:
    """Write x @ w, with the *bias* unless that is None, to *out* by the algorithm of a row.

    Raises AlgorithmError where that is impossible, before anything is written.
    """
    index = out.get_device()
    if torch.cuda.current_device() != index:
        with torch.cuda.device(index):
            return multiply(x, w, bias, out, named)
    # What differs between two calls with a row's kwargs: lowering has checked dtypes and shapes.
    of_bias = None if bias is None else bias.stride()
    layouts = x.shape, x.stride(), w.shape, w.stride(), out.stride()
    key = (named, index, x.dtype, of_bias, layouts)
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _MOST_PLANS:
            if not _is_timing.is_set():
                raise AlgorithmError("there are too many products")
            _plans.clear()  # a build times more algorithms, each in trials of one product
        plan = _plans[key] = _make_plan(x, w, bias, out, Algorithm._make(named))
    if isinstance(plan, AlgorithmError):
        raise AlgorithmError(*plan.args)
    return plan.run(x, w, bias, out)


def _make_plan(x: Any, w: Any, bias: Any, out: Any, algorithm: Algorithm) -> Plan | AlgorithmError:
    operands = [one for one in (x, w, out, bias) if one is not None]
    shapes = [(one.shape, one.stride()) for one in operands]
    try:
        product = Product.of({one.dtype for one in operands}, *shapes)
        library = library_on(out.get_device())
        if library is None:
            return AlgorithmError("cuBLASLt cannot be called")
        return Plan(library, product, algorithm, 0 if bias is None else bias.data_ptr())
    except AlgorithmError as error:
        return error


def refuse_fallbacks() -> None:
    """Let calls raise an error in this process, which times algorithms, not call torch's own."""
    _is_timing.set()


def _note_fallback(op: str, error: Exception) -> None:
    if _is_timing.is_set():
        raise error
    FALLBACKS[op, str(error)] += 1
    count, firewall = FALLBACKS[op, str(error)], Firewall.current()
    answers, found = firewall.answers, f"torch's own call ({error})"
    if answers is not None and not count & (count - 1):  # tables may be installed one by one
        advice = "give operands whose addresses are multiples of 16, and build with this cuBLAS"
        event = Contradicted(f"algorithm of cuBLASLt for {op}", "the row's", found, advice)
        firewall.attempt("extern_kernels", lambda: answers.emit(event), lambda: None)


def _call_of(op: str) -> Callable[..., Any]:
    own = getattr(torch, op)

    def call(*operands: Any, algorithm: str, cublas: int, out: Any) -> Any:
        *bias, x, w = operands
        try:
            multiply(x, w, bias[0] if bias else None, out, (algorithm, cublas))
        except (AlgorithmError, torch.OutOfMemoryError) as error:
            _note_fallback(op, error)
            own(*operands, out=out)
        return out

    return call


class BlasChoice(ExternKernelChoice):
    """The function of this name in inductor's ``extern_kernels``; its kwargs name an algorithm."""

    @property
    def op(self) -> str:
        return str(self.name.removeprefix("warmup_blas_"))

    @property
    def uid(self) -> str:
        return f"blas::{self.op}"


CHOICES: Final = {op: BlasChoice(_call_of(op), name=f"warmup_blas_{op}") for op in ("mm", "addmm")}


def candidates(
    version: Version, kernel_inputs: Any, op: str, named: Iterable[Winner] = ()
) -> Iterator[Any]:
    """Yield a choice for each algorithm where the backends have `CUBLASLT` and sizes are fixed.

    The heuristics' algorithms come first, then those of the *named* winners.
    """
    if CUBLASLT not in option_value("max_autotune_gemm_backends"):
        return
    try:
        library, product = _lowered(kernel_inputs, op)
        answers = library.answers(product)
    except AlgorithmError as error:
        logger.debug("no algorithm of cuBLASLt for %s: %s", op, error)
        return
    for algorithm in (*answers, *filter(None, map(Algorithm.of, named))):
        yield _choice(version, kernel_inputs, op, algorithm)


def variations(choice: Any, winners: Sequence[Winner]) -> Iterator[Winner]:
    """Yield algorithms for the product of *choice* that cuBLASLt has, like the first of *winners*.

    Each has a change of `CHANGES`, or the tile of another of *winners*, which are the algorithms
    that were timed, the fastest first.
    """
    known = [Algorithm.of(one) for one in winners]
    try:
        library, product = _lowered(choice.annotations["ktc"].inputs, choice.choice.op)
        described = library.describe(product)
    except AlgorithmError as error:
        logger.info("%s is not varied: %s", winners[0], error)
        return
    configs = [_read(one.algorithm) for one in known if one is not None]
    tiles = [{"tile": one["tile"]} for one in configs]
    seen = [*configs]
    for base, change in itertools.product(configs[:_VARIED], (*CHANGES, *tiles)):
        numbers = {**base, **change}
        if numbers in seen:
            continue
        seen.append(numbers)
        with contextlib.suppress(AlgorithmError):
            library.make_answer(product, described, _spell(numbers))
            varied = Algorithm(_spell(numbers), library.version)
            yield replace(winners[0], kwargs=tuple(varied._asdict().items()))


def forced(version: Version, kernel_inputs: Any, op: str, winner: Winner) -> Any | MissReason:
    """Return the choice that *winner* names, or the reason for refusing it."""
    algorithm = Algorithm.of(winner)
    if algorithm is None or op not in CHOICES or CHOICES[op].uid != winner.uid:
        return MissReason.CHOICE_REJECTED
    reason = MissReason.TEMPLATE_ABSENT
    try:
        library, product = _lowered(kernel_inputs, op)
        is_own = algorithm.cublas == library.version
        reason = MissReason.CHOICE_REJECTED if is_own else MissReason.TEMPLATE_CHANGED
        Plan(library, product, algorithm)
    except AlgorithmError as error:
        logger.info("%s is not served: %s", winner, error)
        return reason
    return _choice(version, kernel_inputs, op, algorithm)


def _choice(version: Version, kernel_inputs: Any, op: str, algorithm: Algorithm) -> Any:
    params, layout = version.template_params(algorithm._asdict()), kernel_inputs.output_layout()
    return KernelTemplateChoice(CHOICES[op], params, {}, layout, kernel_inputs)


def _lowered(kernel_inputs: Any, op: str) -> tuple[Library, Product]:
    is_nvidia = kernel_inputs.device_type == "cuda" and torch.version.hip is None
    if op not in CHOICES or not is_nvidia or V.graph.aot_mode or V.graph.cpp_wrapper:
        raise AlgorithmError("this product, device or form of code has no such call")
    bias, layout = kernel_inputs.nodes()[:1] if op == "addmm" else [], kernel_inputs.output_layout()
    if bias and {kernel_inputs.get_scalar(name) for name in ("alpha", "beta")} != {1}:
        raise AlgorithmError("alpha or beta is not 1")
    operands = [*kernel_inputs.mat1mat2(), *bias]
    try:
        rows, columns = map(int, layout.size)
        shapes: list[Any] = [(one.get_size(), strides_of(one)) for one in operands]
        shapes.insert(MATRIX_DIMS, ((rows, columns), (columns, 1)))
        dtypes = {layout.dtype, *(one.get_dtype() for one in operands)}
        product = Product.of(dtypes, *shapes)
    except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
        raise AlgorithmError(f"a size or a stride is not known: {error}") from error
    index = kernel_inputs.device().index
    library = library_on(torch.cuda.current_device() if index is None else index)
    if library is None:
        raise AlgorithmError("cuBLASLt cannot be called")
    return library, product
