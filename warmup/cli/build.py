"""`warmup build`: the options, and the build that they mean.

The source is a model and its buckets, a file of problems, or a program that runs once. Where the
options become arguments is `_build_of` and `_run_program`, nowhere else.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.build_render import (
    MEASURE_ALL,
    RETRY,
    UNDECIDED,
    document,
    document_of_plan,
    document_of_program,
    is_undecided,
    spell,
    spell_plan,
    spell_program,
)
from warmup.cli.output import complain, print_report, say
from warmup.cli.streams import EXIT_FOUND, EXIT_UNDECIDED, interruptible
from warmup.core.buckets import ShapePolicy
from warmup.core.errors import NothingRecordedError, SettingsError
from warmup.core.method import Launch, Search
from warmup.core.text import counted, printable

if TYPE_CHECKING:
    from warmup.serving.run import RunReport
    from warmup.tuning.report import BuildReport

_MORE: Final = "More options"
_CONFIG_MAP_BYTES: Final = 2**20


class Again(StrEnum):
    """Which rows of an existing table are measured again."""

    UNSTABLE = "unstable"
    ALL = "all"


# -- Expert settings: `--set NAME=VALUE` ----------------------------------------------------------


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
    "backends": (str, "inductor's GEMM backends; default ATEN,CPP or, on a GPU, ATEN,TRITON"),
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
        "write a bundle with the graphs of a server in this mode of torch.compile",
    ),
    "after": (
        _yes,
        "yes: tune what a program asks when it has ended, not as it is asked",
    ),
}


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``--set`` by name.

    Raises:
        typer.BadParameter: a name is not in `SETTINGS` or given twice, or a value cannot be read.
    """
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


# -- The command ----------------------------------------------------------------------------------


def build(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="A program to run once, instead of --model."),
    ] = None,
    *,
    model: options.ModelOptions,
    problems: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Misses of an audit, or torch's lookup table.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Table; default tables/DEVICE/MODEL.DTYPE.json."),
    ] = None,
    launch: Annotated[
        Launch | None,
        typer.Option(metavar="HOW", help="Serving calls: eager or in a cudagraph."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time limit for a wider --search, such as 20m."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be tuned; measure nothing.")
    ] = False,
    search: Annotated[
        Search,
        typer.Option(
            metavar="HOW",
            show_default=False,
            rich_help_panel=_MORE,
            help="default, wide or exhaustive candidates.",
        ),
    ] = Search.DEFAULT,
    policy: Annotated[
        ShapePolicy,
        typer.Option(
            metavar="HOW",
            show_default=False,
            rich_help_panel=_MORE,
            help="A bucket serves: exact, pad or range sizes.",
        ),
    ] = ShapePolicy.EXACT,
    pad_weights: Annotated[
        bool | None,
        typer.Option(rich_help_panel=_MORE, help="Tune padded weights; default on a GPU."),
    ] = None,
    freezing: Annotated[
        bool | None,
        typer.Option(rich_help_panel=_MORE, help="On a CPU: with frozen weights, or not."),
    ] = None,
    bundle: Annotated[
        bool,
        typer.Option("--bundle", rich_help_panel=_MORE, help="Write the compiled kernels too."),
    ] = False,
    again: Annotated[
        Again | None,
        typer.Option(
            "--retry",
            metavar="ROWS",
            rich_help_panel=_MORE,
            help="Measure unstable or all rows again.",
        ),
    ] = None,
    rows_from: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="TABLE", rich_help_panel=_MORE, help="Take rows that fit; repeatable."
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", rich_help_panel=_MORE, help="With --problems: the I-th of N shares."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", rich_help_panel=_MORE, help="With --problems: on a Ray cluster."
        ),
    ] = None,
    from_vllm: Annotated[
        str | None,
        typer.Option(
            "--from-vllm",
            metavar="FOLDER",
            rich_help_panel=_MORE,
            help="Instead of --model: what vLLM compiles.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            rich_help_panel=_MORE,
            help="Expert settings; docs/reference/cli.md.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", rich_help_panel=_MORE, help="Print JSON instead of text.")
    ] = False,
) -> None:
    """Tune every bucket of a model and write the winners to a table.

    Or tune --problems without the model, or what a program decides in each of its processes.
    """
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # torch's own
    chosen = {
        **model.words(),
        "inputs": model.inputs or None,
        "device": None if model.device == "auto" else model.device,
        "shard": shard,
        "launch": launch,
        "search": None if search is Search.DEFAULT else search,
        "budget": budget,
        "pad_weights": pad_weights,
        "policy": None if policy is ShapePolicy.EXACT else policy,
        "bundle": bundle or None,
        "freezing": freezing,
        "force": (again is Again.ALL) or None,
        "retry": Again.UNSTABLE.value if again is Again.UNSTABLE else None,
        "rows_from": tuple(rows_from or ()) or None,
        "dry_run": dry_run or None,
        **parse_settings(settings or ()),
    }
    words = {name: value for name, value in chosen.items() if value is not None}
    sources = {"model": model.model, "problems": problems, "from_vllm": from_vllm}
    if command or from_vllm is not None:
        beside = {**sources, "cluster": cluster, "from_vllm": command and from_vllm}
        words |= {name: value for name, value in beside.items() if value}
        run = partial(_run_program, out=out, words=words, as_json=as_json)
        run(command or ()) if from_vllm is None or command else _run_engine(run, from_vllm)
        return
    if (model.model is None) is (problems is None):
        raise typer.BadParameter("give one of --model, --problems, --from-vllm and -- COMMAND")
    if words.pop("after", False):
        raise typer.BadParameter("--set after=yes needs a program: -- python serve.py")
    if problems is not None and out is None:
        raise typer.BadParameter("--problems needs --out, the table to complete")
    if problems is not None and _is_of_torch(problems):
        _measure_lookup_table(problems, out, words, as_json=as_json)
    elif shard is None or problems is None or not _is_empty_share(problems, shard):
        tune = _build_of(model.model, problems, out=out, words=words, cluster=cluster)
        _tune(tune, MEASURE_ALL if model.model is None else RETRY, as_json=as_json)


def _tune(tune: Callable[..., BuildReport], remedy: str, *, as_json: bool) -> None:
    """Run the build *tune*, print its report, and end with its exit code.

    *remedy* measures unstable rows again.
    """
    from warmup.cli.progress import BuildProgress

    with BuildProgress() as progress, interruptible(progress.interrupted):
        report = tune(observer=progress)
    if report.plan is not None:
        print_report(report, spell_plan, document_of_plan, as_json=as_json)
        return
    print_report(report, partial(spell, remedy=remedy), document, as_json=as_json)
    size = report.path.stat().st_size
    if size > _CONFIG_MAP_BYTES and not as_json:
        say(f"note: {report.path} has {size} bytes, more than a Kubernetes ConfigMap holds (1 MiB)")
    if report.not_rebuilt or report.not_tuned or report.distrusted:
        raise typer.Exit(EXIT_FOUND)
    if is_undecided(report.table.rows, [one.key for one in report.timings]):
        complain(UNDECIDED)
        raise typer.Exit(EXIT_UNDECIDED)


_HOW: Final = frozenset(  # what a build of each source has
    {
        *("device", "mode", "backends", "tolerance", "launch", "l2", "fused_top_k", "search"),
        "wait_for_quiet",
    }
)
_OF_PROBLEMS: Final = _HOW | {"force", "rows_from", "dry_run", "shard", "problem_limit"}
_OF_PROGRAM: Final = _HOW | {"freezing", "after"}


def _build_of(
    model: str | None,
    problems: Path | None,
    *,
    out: Path | None,
    words: Mapping[str, Any],
    cluster: str | None,
) -> Callable[..., BuildReport]:
    """Return the build that *words* describe, of *model* or of *problems*; it takes an observer.

    Raises:
        typer.BadParameter: a word does not go with the source or with where it is built.
        SettingsError: the limit for a problem is no time.
    """
    from warmup.tuning.build import build as build_model
    from warmup.tuning.device_host import ALL, parse_devices
    from warmup.tuning.devices import REFUSED, build_model_on_devices, build_on_devices
    from warmup.tuning.problems import build_problems
    from warmup.tuning.progress import parse_seconds
    from warmup.tuning.ray_build import build_on_cluster

    how = dict(words)
    if problems is None:
        refuse("--model", {"shard"} & how.keys())
    else:
        refuse("--problems", how.keys() - _OF_PROBLEMS - ({"budget"} if cluster else set()))
    seconds = parse_seconds(how.pop("problem_limit", "30m"), "--set problem_limit")
    source: Any = model if problems is None else problems
    to: Any = out  # None only for a model, which has a default
    devices = how.get("device", "auto")
    if cluster is not None:
        refuse("--cluster", {"dry_run", "rows_from"} & how.keys())
        if problems is None:
            refuse("--cluster", {"model"})
        how |= {"cluster": cluster, "devices": how.pop("device", ALL), "problem_limit_s": seconds}
        return partial(build_on_cluster, source, out=to, **how)
    build_one = build_model if problems is None else build_problems
    if devices != ALL and "," not in devices:
        return partial(build_one, source, out=to, **how)
    if problems is None:
        refuse(f"--devices {devices}", how.keys() & set(REFUSED))
    if how.pop("dry_run", False):  # a plan is made with the first device alone
        how["device"] = parse_devices(devices)[0].name
        return partial(build_one, source, out=to, dry_run=True, **how)
    del how["device"]
    build_all = build_model_on_devices if problems is None else build_on_devices
    return partial(build_all, source, out=to, devices=devices, problem_limit_s=seconds, **how)


def refuse(source: str, given: Collection[str], hint: str = "") -> None:
    """Return where nothing is *given*: arguments that do not go with *source*, by their names.

    A *hint* follows the text of the error.

    Raises:
        typer.BadParameter: there are some; the text has their options.
    """
    spelled = {"inputs": "--input", "force": "--retry all", "retry": "--retry unstable"}
    flags = [
        f"--set {name}" if name in SETTINGS else spelled.get(name, f"--{name.replace('_', '-')}")
        for name in sorted(given)
    ]
    if flags:
        raise typer.BadParameter(f"{source} cannot be combined with {', '.join(flags)}{hint}")


def _is_empty_share(problems: Path, shard: str) -> bool:
    """Return whether the share *shard* of *problems* has no problem, and say so on stderr then.

    Raises:
        typer.BadParameter: *shard* is not of the form ``I/N``.
        SettingsError: *problems* is no misses document.
    """
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


# -- `--problems` with torch's own lookup table ---------------------------------------------------


def _is_of_torch(problems: Path) -> bool:
    """Return whether the file begins as torch's lookup table does, whose keys name dtypes."""
    try:
        with problems.open("rb") as file:
            return b"(torch." in file.read(4096).partition(b":")[0]
    except (OSError, ValueError):
        return False  # the reader of misses says what is wrong


def _measure_lookup_table(
    path: Path, out: Path | None, words: Mapping[str, Any], *, as_json: bool
) -> None:
    """Measure the configs in *path* and the library's kernels, and add the winners to *out*."""
    from warmup.cli.exchange import document_of_configs, spell_configs
    from warmup.cli.progress import BuildProgress
    from warmup.tuning.lookup_table import measure_configs, read_lookup_table

    refuse("torch's lookup table", words.keys() - {"device", "mode"})
    assert out is not None
    entries = read_lookup_table(path)
    measured = None
    if any(entry.winner is not None for entry in entries):
        with BuildProgress() as progress, interruptible(progress.interrupted):
            measured = measure_configs(entries, out, **words, observer=progress)
    shown, told = partial(spell_configs, entries), partial(document_of_configs, entries)
    print_report(measured, shown, told, as_json=as_json)
    if measured is None or measured.open:
        raise typer.Exit(EXIT_FOUND)


# -- `warmup build --out TABLE -- COMMAND`: runs a program once, and tunes its decisions ----------


def _run_program(
    command: Sequence[str], *, out: Path | None, words: Mapping[str, Any], as_json: bool
) -> None:
    """Build the table *out* from *command*; end with the command's exit code, or else the build's.

    Raises:
        typer.BadParameter: there is no *out*, or one of *words* does not go with a program.
    """
    from warmup.cli.progress import BuildProgress
    from warmup.tuning.program import build_from_program

    given = words.keys() - _OF_PROGRAM
    if "," in words.get("device", "") or words.get("device") == "all":
        given |= {"devices"}
    hint = "; --bundle takes no value, the bundle is written beside the table"
    refuse(
        f"{printable(command[0])!r}, which was read as a program to run,",
        given,
        hint if "bundle" in given else "",
    )
    if out is None:
        raise typer.BadParameter("a program needs --out, the table to complete")
    progress = BuildProgress()

    def end(run: RunReport, left: int, again: int) -> None:
        then = [f"{counted(left, 'problem')} left to tune"] if left else []
        then += [f"{counted(again, 'unstable row')} to measure again"] if again else []
        what = ", ".join(then) or "nothing left to tune"
        say(f"warmup build: the program ended with code {run.exit_code}; {what}")
        if left or again:  # the terminal was the program's until now
            stack.enter_context(progress)

    with interruptible(progress.interrupted), contextlib.ExitStack() as stack:
        result = build_from_program(
            command, out=out, stdout_to_stderr=as_json, observer=progress, ended=end, **words
        )
    print_report(result, spell_program, document_of_program, as_json=as_json)
    rows, measured = dict(result.rows), set(result.tuned_in_program)
    if result.rest is not None:
        rows |= result.rest.table.rows
        measured |= {one.key for one in result.rest.timings}
    if undecided := is_undecided(rows, measured):
        complain(UNDECIDED)
    own = EXIT_FOUND if not result.is_complete else EXIT_UNDECIDED if undecided else 0
    raise typer.Exit(result.run.exit_code or own)


_ON_CPU: Final = (
    "on a CPU vLLM's linears call oneDNN and ask inductor nothing, unless a plugin changes that: "
    "there is nothing to build, so serve without a table (docs/how-to/vllm-and-sglang.md)"
)


def _run_engine(run: Callable[[Sequence[str]], None], target: str) -> None:
    """Run vLLM's engine; say first, and where nothing was asked, why vLLM asks nothing on a CPU."""
    from warmup.serving.engines import is_on_gpu

    command = _engine_command(target)
    if is_on_gpu():
        run(command)
        return
    say(f"note: {_ON_CPU}")
    try:
        run(command)
    except NothingRecordedError as error:
        raise NothingRecordedError(str(error.args[0]), _ON_CPU) from error


def _engine_command(target: str) -> list[str]:
    """Return the command for ``FOLDER{"compile_sizes": [1, 8], "tensor_parallel_size": 2, ...}``.

    Raises:
        SettingsError: what stands behind the folder is no JSON object of vLLM's arguments.
    """
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
