"""Audits as text, JSON or metrics, on stdout or in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from warmup.core.errors import SettingsError, printable
from warmup.core.events import in_brackets
from warmup.core.files import replace_text
from warmup.diagnostics.audit import AuditReport


def spell_audit(report: AuditReport, form: str) -> str:
    """Return *report* as ``text``, ``json`` or ``prometheus``.

    Logs are not trusted, so nothing in the text can drive a terminal.
    """
    if form == "prometheus":
        from warmup.diagnostics.prometheus import expose

        return expose(report)
    if form == "json":
        counts = {"miss_count": report.miss_count, "reasons": dict(report.reasons)}
        return json.dumps({**asdict(report), **counts}, indent=2, sort_keys=True) + "\n"
    return "".join(f"{printable(line)}\n" for line in (*_counts(report), *_cases(report)))


def put(path: Path, text: str, option: str) -> None:
    """Put *text* at *path*: a reader sees the old file or the new one, never a part.

    Raises:
        SettingsError: it cannot be written; *option* names the flag.
    """
    try:
        replace_text(path, text)
    except OSError as error:
        raise SettingsError(
            f"{option} {path}: cannot be written: {error.strerror}", "name a writable file"
        ) from error


def _counts(report: AuditReport) -> Iterator[str]:
    digests = ", ".join(report.digests) or "none"
    yield f"runs        {report.runs} (table digest {digests})"
    yield f"hits        {sum(report.hits.values())} ({len(report.hits)} problems)"
    yield f"misses      {report.miss_count}{in_brackets(report.reasons)}"
    yield f"uncovered   {sum(report.uncovered.values())}{in_brackets(report.uncovered)}"
    missed = f", {report.cached_misses} missed" if report.cached_misses else ""
    yield f"from cache  {report.from_cache} graphs ({report.cached_decisions} decisions{missed})"
    if report.tuned:
        yield f"tuned       {sum(report.tuned.values())} (on_miss=tune)"
    if report.outside:
        yield f"outside     {sum(report.outside.values())} calls{in_brackets(report.outside)}"
    unused = "unknown: name the table with --table" if report.unused is None else len(report.unused)
    yield f"unused rows {unused}"
    if report.diverged:
        yield f"diverged    {len(report.diverged)}"
    for line in report.contradictions:
        yield f"contradicted option {line}"
    if report.silent:
        yield f"silent runs {', '.join(report.silent)}"
    if report.damaged:
        yield f"unreadable  {report.damaged} event lines"


def _cases(report: AuditReport) -> Iterator[str]:
    for one in report.diverged:
        yield f"diverged {one.key or 'table digest'}"
        for choice, runs in one.choices.items():
            yield f"    {choice}: {', '.join(runs)}"
    for miss in report.misses:
        yield f"miss x{miss.count} {miss.key} ({miss.reason})"
        if miss.choice:
            yield f"    compiled {miss.choice}"
        if miss.nearest:
            yield f"    nearest {miss.nearest}"
            yield f"    differs in {', '.join(miss.differs)}"
    for key in report.unused or ():
        yield f"unused {key}"
