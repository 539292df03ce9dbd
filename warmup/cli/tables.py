"""`warmup show`, `diff`, `merge` and `export`: the commands on table files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial, reduce
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.output import (
    ABSENT,
    complain,
    fold,
    fold_cells,
    grid,
    print_line,
    print_report,
    record,
    say,
    spell_cost,
    spell_peaks,
    terminal_width,
    times,
    versions,
    wrapped,
)
from warmup.cli.streams import EXIT_FOUND
from warmup.core.device import CallCost
from warmup.core.files import write_output
from warmup.core.rows import Evidence, Flag, Row, Scope, lag_behind_library, ranked
from warmup.core.text import counted
from warmup.keys.kind import Kind, natural_order
from warmup.keys.registry import KINDS, ingredients_of, kind_of
from warmup.table.codec import digest_of, encode
from warmup.table.invariance import invariance_of
from warmup.table.merge import Difference, Preference
from warmup.table.merge import diff as compare_tables
from warmup.table.merge import merge as merge_tables
from warmup.table.review import Doubt, Level, Reviewed, review_table, share_at_least
from warmup.table.review import review as find_doubts
from warmup.table.schema import Table
from warmup.table.store import read, read_folded, write

_PLAIN_SIZE: Final = re.compile(r"[0-9]+(\.\.[0-9]*)?")
DoubtedTables = Mapping[Path, tuple[Reviewed, tuple[Doubt, ...]]]
_LEVEL_HEADS: Final = {
    Level.WRONG: "probably wrong: measure again",
    Level.LOOK: "to look at: explain, or measure again",
}
UNSTABLE_MARK: Final = "?"  # before a time that carries no decision
ROW_HEAD: Final = ("winner", "us", "library us", "speed-up")


def spell_table(table: Table, words: str | None = None) -> Iterator[str]:
    """Yield the origin of *table*, then a grid for each kind of its rows with *words*."""
    # What all rows of a kind have in common, other than sizes, stands once above them.
    yield from _spell_origin(table)
    keys = _select(table, words)
    for kind in KINDS.values():
        own = [key for key in keys if kind_of(key) is kind]
        if own:
            yield from _spell_kind(table, kind, own)
    flags = Counter(flag for key in keys for flag in table.rows[key].evidence.flags)
    marks = {Flag.UNSTABLE: f" (marked {UNSTABLE_MARK})"}
    flagged = "".join(f", {n} {flag}{marks.get(flag, '')}" for flag, n in sorted(flags.items()))
    doubted = [key for key in keys if table.rows[key].untrusted is not None]
    for key in doubted:
        yield from wrapped(f"not trusted, not served: {key}: {table.rows[key].untrusted}")
    flagged += f", {len(doubted)} not trusted" if doubted else ""
    found = [table.rows[key].evidence for key in keys]
    clock = _clock(found)
    yield f"{len(keys)} of {counted(len(table.rows), 'row')}{flagged}{clock and f', timed{clock}'}"
    if lags := sum(lag_behind_library(evidence) is not None for evidence in found):
        yield from wrapped(
            f"{counted(lags, 'row')} slower than the library's kernel at the largest size of a "
            "range: along the range the winner loses less (evidence.along)"
        )


def _select(table: Table, words: str | None = None, part: str | None = None) -> list[str]:
    wanted = set((words or "").split())
    keys = (key for key in table.rows if wanted <= set(key.split()) and (part or "") in key)
    return sorted(keys, key=natural_order)


def _spell_origin(table: Table) -> Iterator[str]:
    origin, method = table.provenance, table.policy.timing
    device, runtime = origin.runtime.device, origin.runtime
    yield from wrapped(
        f"{device.name} ({device.arch}), {versions(runtime.torch, runtime.triton)}, "
        f"built {origin.created} by warmup {origin.warmup}, mode {table.policy.mode}, "
        f"L2 {method.l2}, digest {digest_of(table)[:16]}"
    )
    for assumption in origin.assumptions:
        yield from wrapped(assumption, indent=4)
    if (promise := invariance_of(table)) is not None:
        yield from wrapped(f"invariant: {promise}")
    yield from spell_limits(dict(origin.calls))


def spell_limits(calls: Mapping[str, CallCost]) -> Iterator[str]:
    """Yield what a call in each bucket of *calls* costs, and what a host limit means.

    Nothing is said where the device limits every bucket.
    """
    names = sorted(calls, key=natural_order)
    limited = sum(calls[name].is_host_limited for name in names)
    if not limited:
        return
    for name in names:
        yield from wrapped(f"{name}: {spell_cost(calls[name])}")
    yield from wrapped(
        f"launched one by one, {limited} of {counted(len(names), 'bucket')} "
        f"{'is' if limited == 1 else 'are'} limited by the host; CUDA "
        "graphs (mode reduce-overhead or max-autotune) have no such limit: serve with them; "
        "--set bundle_graphs=reduce-overhead builds for them"
    )


def _spell_kind(table: Table, kind: Kind, keys: Sequence[str]) -> Iterator[str]:
    named = {key: kind.ingredients(key) for key in keys}
    shared = _shared(kind, list(named.values()))
    if shared:
        words = (value if name in kind.words else f"{name}={value}" for name, value in shared)
        yield from wrapped(" ".join(words), f"all {kind.name} rows: ", indent=None)
    hidden = {name for name, _ in shared}
    question = [kind.question] if kind.question and kind.question not in hidden else []
    rows = []
    for key in keys:
        answers = [named[key].get(name, ABSENT) for name in question]
        rows.append([kind.label(key, hidden), *answers, *row_cells(table.rows[key])])
    yield from grid((kind.name, *question, *ROW_HEAD), rows, texts=len(question) + 2)


def _shared(kind: Kind, named: Sequence[dict[str, str]]) -> list[tuple[str, str]]:
    if len(named) == 1:
        return []
    kept = {*kind.words[: kind.fixed], *kind.hidden}
    return [
        (name, value)
        for name, value in named[0].items()
        if name not in kept
        and not _PLAIN_SIZE.fullmatch(value)
        and all(one.get(name) == value for one in named)
    ]


def spell_candidates(table: Table, keys: Sequence[str]) -> Iterator[str]:
    """Yield the origin of *table*, then the candidates of each of *keys* with their times."""
    yield from _spell_origin(table)
    for key in keys:
        yield ""
        yield from fold_cells(key, "", terminal_width())
        yield from _spell_ranking(table.rows[key])


def _spell_ranking(row: Row) -> Iterator[str]:
    evidence = row.evidence
    ranking = ranked(evidence.ranking)
    what = "with the operations fused into it" if evidence.scope is Scope.FUSED else "alone"
    if evidence.bare_ranking:
        what = "as compiled with what surrounds the GEMM"
    known = "" if ranking else "; the ranking was not kept, only these"
    tried = counted(evidence.tried, "candidate")
    timed = f"{tried} tried, timed {what}{_clock([evidence])}{known}"
    yield from wrapped(timed, "  ")
    if not ranking:
        first = [(evidence.time_us, row.winner.short)]
        if evidence.runner_up_us is not None:
            first.append((evidence.runner_up_us, evidence.runner_up or ABSENT))
        ranking = tuple(sorted(first))
    best = ranking[0][0]
    width = max(len(f"{time_us:.1f}") for time_us, _ in ranking)
    names = [name for _, name in ranking]
    winner = names.index(row.winner.short) if row.winner.short in names else None
    for number, (time_us, name) in enumerate(ranking):
        mark = "winner" if number == winner else ""
        head = f"  {time_us:>{width}.1f} us  {best / time_us:>6.1%}  {mark:6}  "
        yield from fold_cells(name, head, terminal_width())
    if evidence.library_us is not None:
        yield f"  library default {evidence.library_us:.1f} us"
    if evidence.kernels is not None:
        yield from wrapped(_spell_kernels(evidence), "  ")
    if own := ranked(evidence.bare_ranking):
        said = ", ".join(f"{name} {time_us:.1f} us" for time_us, name in own)
        line = f"library kernels with separate pad kernels, which did not decide: {said}"
        yield from wrapped(line, "  ")
    kernels = {name.removesuffix(" not fused").removesuffix(" fused") for name in names}
    more = evidence.tried - evidence.failed - len(kernels)
    if more > 0:
        yield f"  {more} more {'was' if more == 1 else 'were'} slower, or not timed that way"
    if evidence.rejected:
        reasons = ", ".join(f"{count} {reason}" for reason, count in evidence.rejected)
        yield f"  rejected: {reasons}"


def _clock(found: Iterable[Evidence]) -> str:
    clocks = sorted({one.clock_mhz for one in found if one.clock_mhz is not None})
    return f" at {' to '.join(map(str, (*clocks[:1], *clocks[1:][-1:])))} MHz" if clocks else ""


def _spell_kernels(evidence: Evidence) -> str:
    text = counted(evidence.kernels or 0, "kernel")
    if evidence.library_kernels is not None:
        text += f", {evidence.library_kernels} with the library default"
    if evidence.registers is not None:
        text += f"; registers of a thread: {evidence.registers}, {evidence.spills or 0} spilled"
    if evidence.compile_s is not None:
        text += f"; compiled in {evidence.compile_s:.1f} s"
    return text


def row_cells(row: Row) -> tuple[str, str, str, str]:
    evidence = row.evidence
    library = evidence.library_us
    short = row.winner.short
    return (
        # The names of warmup's own templates say whose they are; with more, a row is over 80 wide.
        short.removeprefix("triton::") if short.startswith("triton::warmup_") else short,
        f"{UNSTABLE_MARK if evidence.is_unstable else ''}{evidence.time_us:.1f}",
        ABSENT if library is None else f"{library:.1f}",
        times(None if library is None else library / evidence.time_us),
    )


def _spell_review(tables: DoubtedTables) -> Iterator[str]:
    for path, (reviewed, all_doubts) in tables.items():
        doubts = {level: [one for one in all_doubts if one.level is level] for level in Level}
        wrong, look = len(doubts[Level.WRONG]), len(doubts[Level.LOOK])
        tally = f"{wrong} probably wrong, {look} to look at" if wrong + look else "nothing to doubt"
        yield from fold(f"{path}: {counted(len(reviewed.rows), 'number')}, {tally}", indent=2)
        yield from fold(_peaks(reviewed), "  ", indent=4)
        for level, own in doubts.items():
            if own:
                yield f"{_LEVEL_HEADS[level]} ({len(own)})"
            for doubt in own:
                yield from fold(doubt.subject, "  ", indent=4)
                yield from fold(doubt.reason, "      ", indent=6)


def _peaks(reviewed: Reviewed) -> str:
    unknown = sum(one.work is None for one in reviewed.rows)
    without = f"; {counted(unknown, 'number')} without a known work" if unknown else ""
    if reviewed.peaks is None:
        return f"no measured peaks: no shares{without}"
    return f"{spell_peaks(reviewed.peaks, reviewed.peaks.tflops)}{without}"


def _document_of_review(tables: DoubtedTables) -> list[dict[str, Any]]:
    # A share is the least that a number can mean; null where its work or the peaks are unknown.
    return [
        {
            "file": str(path),
            "peaks": record(reviewed.peaks),
            "doubts": record(doubts),
            "numbers": [
                {
                    "subject": one.key,
                    "time_us": one.evidence.time_us,
                    "share": share_at_least(reviewed, one),
                }
                for one in reviewed.rows
            ],
        }
        for path, (reviewed, doubts) in tables.items()
    ]


_SHOWN_VALUES: Final = 12


def show(
    tables: Annotated[
        list[Path], typer.Argument(metavar="TABLE", help="A table; with --review several.")
    ],
    *,
    rows: Annotated[
        str | None,
        typer.Option(help='Only rows with all of these words in their key: "addmm m=560".'),
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(help="Rank the candidates of the rows with this text in their key."),
    ] = None,
    review: Annotated[
        bool, typer.Option("--review", help="List times that cannot be true, or contradict others.")
    ] = False,
    fail_on: Annotated[
        Level | None,
        typer.Option(help="With --review: exit with code 1 for doubts of this level, or a worse."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the rows of a table. Exit code 1 when no row matches.

    With --review, list the times of tables that cannot be true, or that contradict each other.
    """
    filters = {"--rows": rows, "--candidates": candidates}
    given = [f"{name} {value}" for name, value in filters.items() if value is not None]
    if review:
        if given:
            raise typer.BadParameter(f"{given[0]}: --review reviews every row of a table")
        reviewed = ((path, review_table(read_folded(path))) for path in tables)
        doubted = {path: (each, find_doubts(each)) for path, each in reviewed}
        print_report(doubted, _spell_review, _document_of_review, as_json=as_json)
        levels = {doubt.level for _, doubts in doubted.values() for doubt in doubts}
        if fail_on is not None and levels & {fail_on, Level.WRONG}:  # the worst level always fails
            raise typer.Exit(EXIT_FOUND)
        return
    if fail_on is not None:
        raise typer.BadParameter("--fail-on needs --review")
    if len(tables) > 1:
        raise typer.BadParameter(f"{len(tables)} tables: name one, or --review them")
    (table,) = tables
    found = read_folded(table)
    keys = _select(found, rows, candidates)
    spell = (
        partial(spell_table, words=rows)
        if candidates is None
        else partial(spell_candidates, keys=keys)
    )
    print_report(found, spell, partial(_document, keys=keys), as_json=as_json)
    if given and not keys:
        complain(f"error: no row of {table} matches {', '.join(given)}; {_known(found)}")
        raise typer.Exit(EXIT_FOUND)


def _known(table: Table) -> str:
    named = [ingredients_of(key) for key in table.rows]
    texts = []
    for name in ("op", "m"):
        values = sorted({one[name] for one in named if name in one}, key=natural_order)
        shown = ", ".join(values[:_SHOWN_VALUES]) or "none"
        texts.append(f"{name}: {shown}{', ...' if len(values) > _SHOWN_VALUES else ''}")
    return f"its rows have {'; '.join(texts)}"


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A table file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The table file to compare with.")],
    *,
    as_json: options.AsJson = False,
) -> None:
    """Print the differences between two tables. Exit code 1 when there are any."""
    difference = compare_tables(read_folded(a), read_folded(b))
    print_report(difference, spell_difference, _document_of_difference, as_json=as_json)
    if not difference.is_empty:
        raise typer.Exit(EXIT_FOUND)
    if not as_json:
        say("no difference")


def merge(
    tables: Annotated[
        list[Path], typer.Argument(metavar="A B...", help="Table files for one device and runtime.")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The table file to write.")],
    prefer: Annotated[
        Preference | None,
        typer.Option(
            help="The winner to keep where a key has two; evidence: the better measured, faster: "
            "the one with the smaller time."
        ),
    ] = None,
) -> None:
    """Write the union of tables. Two winners for a key are an error without --prefer.

    Further tables are joined one by one: a is then the union so far, b the next table.
    """
    if not tables[1:]:
        raise typer.BadParameter("name at least two tables")
    known = [read_folded(path) for path in tables]
    union = reduce(partial(merge_tables, prefer=prefer), known)
    write(out, union, known=known)
    say(f"{out}: {counted(len(union.rows), 'row')}")


def _document(table: Table, keys: Collection[str]) -> Any:
    document, kept = json.loads(encode(table)), set(keys)
    document["rows"] = {
        kind: {key: row for key, row in rows.items() if key in kept}
        for kind, rows in document["rows"].items()
    }
    return document


def spell_difference(difference: Difference) -> Iterator[str]:
    """Yield the differences in the manner of diff, a sign and a line for each."""
    yield from (f"! {line}" for line in difference.context)
    yield from (f"- {key}" for key in difference.only_a)
    yield from (f"+ {key}" for key in difference.only_b)
    for key, a, b in difference.changed:
        yield f"~ {key}"
        for name, row in (("a", a), ("b", b)):
            doubt = "" if row.untrusted is None else f", not trusted: {row.untrusted}"
            yield f"    {name} {row.winner} {row.evidence.time_us:.1f} us{doubt}"


def _document_of_difference(difference: Difference) -> dict[str, Any]:
    return {
        "context": list(difference.context),
        "only_a": list(difference.only_a),
        "only_b": list(difference.only_b),
        "changed": [
            {
                "key": key,
                "a": str(a.winner),
                "b": str(b.winner),
                "untrusted_a": a.untrusted,
                "untrusted_b": b.untrusted,
            }
            for key, a, b in difference.changed
        ],
    }


class Reader(StrEnum):
    """What reads an exported file."""

    TORCH = "torch"
    TUNABLE_OP = "tunableop"
    VLLM = "vllm-batch-invariant"


def export(
    table: options.TableFile,
    *,
    out: Annotated[Path, typer.Option(help="JSON, CSV for TunableOp, Python for vLLM.")],
    to: Annotated[Reader, typer.Option(help="What will read it.")] = Reader.TORCH,
) -> None:
    """Write the GEMM rows of a table for torch or vLLM, without warmup."""
    found = read(table)
    if to is Reader.VLLM:
        from warmup.serving.engines import batch_invariant_tiles

        tiles = batch_invariant_tiles(found)
        text, left_out, entries = tiles.source, tiles.left_out, len(tiles.weights)
        what = f"as tiles of {counted(entries, 'weight')}"
    else:
        from warmup.tuning.exchange import export_lookup_table, export_tunable_ops

        exported = (export_lookup_table if to is Reader.TORCH else export_tunable_ops)(found)
        text, left_out, entries = exported.text, exported.left_out, exported.entries
        what = f"under {counted(entries, 'key')} of torch's, a kernel each"
    write_output(out, text, "--out")
    lacking = sum(map(len, left_out.values()))
    rows = counted(len(found.rows) - lacking, "row")
    print_line(f"{out}: {rows} {what}; {lacking} left out")
    for reason, keys in left_out.items():
        for line in wrapped(f"left out: {counted(len(keys), 'row')}: {reason}"):
            print_line(line)
    if not entries:
        raise typer.Exit(EXIT_FOUND)
