"""`warmup build`: the options, and the build that they mean.

The source is a model and its buckets, a file of problems, or a program that runs once. Where the
options become a `BuildRequest` is `_request_of`, nowhere else.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.output import complain, print_report, say, wrapped
from warmup.cli.streams import EXIT_FOUND, EXIT_UNDECIDED, interruptible
from warmup.core.buckets import ShapePolicy
from warmup.core.errors import NothingRecordedError, SettingsError
from warmup.core.rows import CUBLASLT, Effort, Family, Search

if TYPE_CHECKING:
    from warmup.tuning.build import BuildRequest, Runner, Source
    from warmup.tuning.report import BuildReport

_CONFIG_MAP_BYTES: Final = 2**20


def _more(help_text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(
        *names, metavar=metavar, help=help_text, rich_help_panel="More options", show_default=False
    )


def _number(least: float, most: float = float("inf")) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise ValueError(f"{text} is not in the range {least:g} to {most:g}")
        return value

    return read


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"{text} is neither yes nor no")
    return text == "yes"


# By name: how the value is read, and what the setting means (docs/reference/cli.md lists them).
SETTINGS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "mode": (str, "mode of the compile; default max-autotune-gemm, all are searched alike"),
    "backends": (str, "GEMM backends: ATEN,CPP or, on a GPU, ATEN,TRITON and, if named, CUBLASLT"),
    "tolerance": (_number(0, 1), "relative L2 error that is always accepted; default by dtype"),
    "l2": (str, "what timed calls find in the L2 cache: cold or warm; default cold, on a CPU warm"),
    "fused_top_k": (
        int,
        "candidates, beside the library's, that are timed with their epilogue; default 4",
    ),
    "wait_for_quiet": (
        _number(0),
        "seconds in all to wait while other processes keep the machine busy; default 30",
    ),
    "problem_limit": (
        str,
        "with several devices: time after which a problem is given to another; default 30m",
    ),
    "bundle_graphs": (
        str,
        "mode of the server, whose graphs the bundle has; on a GPU that of the table",
    ),
    "after": (_yes, "yes: tune what a program asks when it has ended, not as it is asked"),
}


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``--set`` by name; a wrong one is a `typer.BadParameter`."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in SETTINGS:
            raise typer.BadParameter(
                f"--set {word}: write NAME=VALUE, any of {', '.join(SETTINGS)}"
            )
        if name in found:
            raise typer.BadParameter(f"--set {name} is given twice")
        try:
            found[name] = SETTINGS[name][0](text)
        except ValueError as error:
            raise typer.BadParameter(f"--set {word}: {error}") from None
    return found


def build(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="A program to run once, instead of --model."),
    ] = None,
    *,
    model: options.ModelOptions,
    problems: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Misses of an audit, or a file of torch's."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Table; default tables/DEVICE/MODEL.DTYPE.json."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time limit of the build, such as 20m.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be tuned; measure nothing.")
    ] = False,
    search: Annotated[
        Search, _more("default, wide or exhaustive candidates.", metavar="HOW")
    ] = Search.DEFAULT,
    effort: Annotated[
        Effort, _more("Search by share of the time, or full.", metavar="HOW")
    ] = Effort.SHARE,
    policy: Annotated[
        ShapePolicy, _more("A bucket serves: exact, pad or range sizes.", metavar="HOW")
    ] = ShapePolicy.EXACT,
    pad_weights: Annotated[bool | None, _more("Tune padded weights; default on a GPU.")] = None,
    freezing: Annotated[bool | None, _more("On a CPU: with frozen weights, or not.")] = None,
    invariant: Annotated[
        bool, _more("A row has the same bits in all buckets.", "--invariant")
    ] = False,
    bundle: Annotated[bool | None, _more("Write the kernels beside the table; default.")] = None,
    again: Annotated[
        str | None, _more("Measure rows again: unstable, all, or FILE.", "--retry", metavar="ROWS")
    ] = None,
    rows_from: Annotated[
        list[Path] | None, _more("Take rows that fit; repeatable.", metavar="TABLE")
    ] = None,
    shard: Annotated[
        str | None, _more("With --problems: the I-th of N shares.", metavar="I/N")
    ] = None,
    cluster: Annotated[
        str | None, _more("With --problems: on a Ray cluster.", metavar="ADDRESS")
    ] = None,
    from_vllm: Annotated[
        str | None, _more("Instead of --model: what vLLM compiles.", metavar="FOLDER")
    ] = None,
    settings: Annotated[
        list[str] | None,
        _more("Expert settings; docs/reference/cli.md.", "--set", metavar="NAME=VALUE"),
    ] = None,
    as_json: Annotated[bool, _more("Print JSON instead of text.", "--json")] = False,
) -> None:
    """Tune every bucket of a model and write the winners to a table.

    Or tune --problems without the model, or what a program decides.
    """
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # torch's own
    chosen = {
        **model.words(),
        "inputs": model.inputs or None,
        "device": None if model.device == "auto" else model.device,
        "shard": shard,
        "search": None if search is Search.DEFAULT else search,
        "budget": budget,
        "effort": None if effort is Effort.SHARE else effort.value,
        "pad_weights": pad_weights,
        "invariant": invariant or None,
        "policy": None if policy is ShapePolicy.EXACT else policy,
        "bundle": bundle if bundle or model.model else None,
        "freezing": freezing,
        "force": (again == "all") or None,
        "retry": None if again == "all" else _rows_of(again),
        "rows_from": tuple(rows_from or ()) or None,
        "dry_run": dry_run or None,
        **parse_settings(settings or ()),
    }
    words = {name: value for name, value in chosen.items() if value is not None}
    if command or from_vllm is not None:
        beside = {"model": model.model, "problems": problems, "from_vllm": command and from_vllm}
        given = {name for name, value in beside.items() if value}
        program = command or _engine_command(from_vllm or "")
        is_engine = not command
        _tune_program(program, out, words, given, cluster, as_json=as_json, is_engine=is_engine)
        return
    if (model.model is None) is (problems is None):
        raise typer.BadParameter("give one of --model, --problems, --from-vllm and -- COMMAND")
    if words.pop("after", False):
        raise typer.BadParameter("--set after=yes needs a program: -- python serve.py")
    if problems is not None and out is None:
        raise typer.BadParameter("--problems needs --out, the table to complete")
    if problems is not None and _is_of_torch(problems):
        source = _source_of_torch(problems, words)
    elif shard is not None and problems is not None and _is_empty_share(problems, shard):
        return
    else:
        source = _source_of(model.model, problems, words)
    _tune(_request_of(source, out, words, cluster), as_json=as_json)


def _rows_of(again: str | None) -> str | tuple[str, ...] | None:
    if again in (None, "unstable"):
        return again
    from warmup.tuning.verify import read_drifted

    return read_drifted(Path(again))


def _tune(request: BuildRequest, *, as_json: bool, reason: str = "") -> None:
    from warmup.cli import build_render as render
    from warmup.tuning.build import build
    from warmup.tuning.problems import ProblemsSource
    from warmup.tuning.program import ProgramSource

    of_program = isinstance(request.source, ProgramSource)
    progress = render.BuildProgress(of_program=of_program)
    try:
        with progress, interruptible(progress.interrupted):
            report = build(request, progress)
    except NothingRecordedError as error:
        if not reason:
            raise
        raise NothingRecordedError(str(error.args[0]), reason) from error
    if report.plan is not None:
        print_report(report, render.spell_plan, render.document_of_plan, as_json=as_json)
        return
    if of_program:
        print_report(report, render.spell_program, render.document_of_program, as_json=as_json)
        raise typer.Exit(_exit_code(report))
    is_of_model = not isinstance(request.source, ProblemsSource)
    spell = partial(render.spell, remedy=render.RETRY if is_of_model else render.MEASURE_ALL)
    print_report(report, spell, render.document, as_json=as_json)
    size = report.path.stat().st_size
    if size > _CONFIG_MAP_BYTES and not as_json:
        say(f"note: {report.path} has {size} bytes, more than a Kubernetes ConfigMap holds (1 MiB)")
    raise typer.Exit(_exit_code(report))


def _exit_code(report: BuildReport) -> int:
    from warmup.cli.build_render import UNDECIDED, is_undecided

    rows, measured = dict(report.table.rows), {one.key for one in report.timings}
    program_code = 0
    if (program := report.program) is not None:
        rows, measured = {**program.rows, **rows}, measured | program.tuned
        program_code = program.run.exit_code
    elif not report.is_complete:
        return EXIT_FOUND
    if undecided := is_undecided(rows, measured):
        complain(UNDECIDED)
    own = EXIT_FOUND if not report.is_complete else EXIT_UNDECIDED if undecided else 0
    return program_code or own


_OF_SOURCES: Final = frozenset({"seqlens", "dims", "shard"})


def _source_of(model: str | None, problems: Path | None, words: Mapping[str, Any]) -> Source:
    from warmup.tuning.model import ModelSource
    from warmup.tuning.problems import ProblemsSource

    if problems is not None:
        _refuse("--problems", {"seqlens", "dims"} & words.keys())
        return ProblemsSource(problems, words.get("shard"))
    _refuse("--model", {"shard"} & words.keys())
    assert model is not None
    return ModelSource(model, words.get("seqlens"), tuple(words.get("dims", ())))


def _request_of(
    source: Source,
    out: Path | None,
    words: Mapping[str, Any],
    cluster: str | None,
    given: Collection[str] = (),
) -> BuildRequest:
    from warmup.tuning.build import BuildOptions, BuildRequest, ThisProcess
    from warmup.tuning.devices import ALL, Devices
    from warmup.tuning.progress import parse_seconds
    from warmup.tuning.ray_build import Cluster

    how = {name: value for name, value in words.items() if name not in _OF_SOURCES}
    seconds = parse_seconds(how.pop("problem_limit", "30m"), "--set problem_limit")
    device = how.get("device", "auto")
    runner: Runner = ThisProcess()
    if cluster is not None:
        kinds = how.pop("device", ALL)
        runner = Cluster(address=cluster, devices=kinds, problem_limit_s=seconds)
    elif device == ALL or "," in device:
        runner = Devices(names=how.pop("device"), problem_limit_s=seconds)
    options = BuildOptions(**{**how, "rows_from": tuple(map(str, how.get("rows_from", ())))})
    request = BuildRequest(source=source, runner=runner, out=out, options=options)
    label, refused = request.contradictions() or (source.label, [])
    _refuse(label, [*refused, *given] if label == source.label else refused)
    return request


def _refuse(source: str, given: Collection[str]) -> None:
    spelled = {"inputs": "--input", "force": "--retry all", "retry": "--retry"}
    flags = [
        f"--set {name}" if name in SETTINGS else spelled.get(name, f"--{name.replace('_', '-')}")
        for name in sorted(given)
    ]
    hint = "; --bundle takes no value, the bundle is written beside the table"
    if flags:
        text = f"{source} cannot be combined with {', '.join(flags)}"
        raise typer.BadParameter(f"{text}{hint if 'bundle' in given else ''}")


def _is_empty_share(problems: Path, shard: str) -> bool:
    from warmup.serving.audit import read_misses
    from warmup.tuning.problems import parse_shard, share_of

    try:
        parse_shard(shard)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        share_of(read_misses(problems), shard)
    except NothingRecordedError as error:
        say(f"{error}; nothing was tuned, and no table was written")
        return True
    return False


def _is_of_torch(problems: Path) -> bool:
    try:
        with problems.open("rb") as file:
            start = file.read(4096)
            return start.startswith(b"Validator,") or b"(torch." in start.partition(b":")[0]
    except (OSError, ValueError):
        return False  # `read_misses` names the fault of the file


def _source_of_torch(path: Path, words: dict[str, Any]) -> Source:
    from warmup.tuning.exchange import read_configs, source_of, spell_entries

    _refuse("torch's file", words.keys() - {"device", "mode", "wait_for_quiet", "backends"})
    entries = read_configs(path)
    for line in itertools.chain.from_iterable(map(wrapped, spell_entries(entries))):
        say(line)
    families = {entry.winner.family for entry in entries if entry.winner is not None}
    if not families:
        raise typer.Exit(EXIT_FOUND)
    if Family.BLAS in families:
        words.setdefault("backends", f"ATEN,TRITON,{CUBLASLT}")
    return source_of(entries)


_ON_CPU: Final = (
    "on a CPU vLLM's linears call oneDNN and ask inductor nothing, unless a plugin changes that: "
    "there is nothing to build, so serve without a table (docs/how-to/vllm-and-sglang.md)"
)


def _tune_program(
    command: Sequence[str],
    out: Path | None,
    words: Mapping[str, Any],
    given: Collection[str],
    cluster: str | None,
    *,
    as_json: bool,
    is_engine: bool,
) -> None:
    from warmup.serving.engines import is_on_gpu
    from warmup.tuning.program import ProgramSource

    how = dict(words)
    source = ProgramSource(tuple(command), after=how.pop("after", False), stdout_to_stderr=as_json)
    given = {*given, *({"problem_limit", *_OF_SOURCES} & how.keys())}
    request = _request_of(source, out, how, cluster, given)
    if out is None:
        raise typer.BadParameter("a program needs --out, the table to complete")
    reason = _ON_CPU if is_engine and not is_on_gpu() else ""
    if reason:
        say(f"note: {reason}")
    _tune(request, as_json=as_json, reason=reason)


def _engine_command(target: str) -> list[str]:
    """Return the command for ``FOLDER{"compile_sizes": [1, 8], "tensor_parallel_size": 2}``."""
    from warmup.serving.engines import vllm_command

    folder, brace, rest = target.partition("{")
    advice = "write --from-vllm 'FOLDER{\"compile_sizes\": [1, 8, 64]}'"
    try:
        engine = json.loads(brace + rest or "{}")
        sizes, ranks = engine.pop("compile_sizes", []), engine.pop("tensor_parallel_size", 1)
    except ValueError as error:
        raise SettingsError(f"--from-vllm: the arguments are no JSON ({error})", advice) from error
    if type(ranks) is not int or not (
        isinstance(sizes, list) and all(type(size) is int for size in sizes)
    ):
        raise SettingsError("--from-vllm: compile_sizes or tensor_parallel_size", advice)
    return vllm_command(Path(folder), sizes, ranks=ranks, engine=engine)
