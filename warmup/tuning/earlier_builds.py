"""`EarlierBuilds`: what finished builds on this machine left, so that nothing is done twice.

A record in the user's cache folder says which keys each bucket of a model asked for, and under
which digest of its graphs. It holds for one model, with the sources of its project, one set of
buckets and options, one device, torch and warmup: anything else is another record. The winners
themselves are in the table only. A lost or damaged record costs the time of compiling again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import platformdirs

from warmup.buckets.bucket import Bucket
from warmup.core.files import replace_text
from warmup.core.rows import Row
from warmup.core.version import __version__
from warmup.tuning.report import BucketResult

if TYPE_CHECKING:
    from warmup.tuning.judge import Judgement
    from warmup.tuning.session import Session
    from warmup.tuning.setup import BuildSetup

_FORMAT: Final = 1
_MAX_RECORDS: Final = 256  # the oldest are removed
_MAX_RECORD_BYTES: Final = 64 * 2**20
_BUILD_VARIABLES: Final = ("TORCH", "TRITON", "OMP_", "MKL_", "CUDA", "CXX", "CC", "ATEN_", "KMP_")
_NO_DECISION: Final = "_CACHE_DIR"  # the end of variables that change no decision


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the last build on a device took: problems tuned, seconds, and the day."""

    problems: int
    seconds: float
    day: str


@dataclass(frozen=True, slots=True)
class EarlierBuilds:
    """The records of builds in *folder*, and the name of this build's own; None: it keeps none."""

    folder: Path
    name: str | None

    def find(self, session: Session, buckets: Sequence[Bucket]) -> tuple[BucketResult, ...] | None:
        """Return the results for *buckets* of the build that made the record, nothing tuned.

        None unless each bucket has the graphs of the record now, and each key its winner in the
        table. The model is called once in each bucket.
        """
        started = time.monotonic()
        record = self._read()
        if record is None:
            return None
        rows, is_open = session.compiler.progress.rows, session.compiler.progress.must_tune
        try:
            if any(
                is_open(key) or _winner(rows[key]) != winner
                for key, winner in record["winners"].items()
            ):
                return None
            if list(self._digests(session, buckets, record["shortened"])) != record["graphs"]:
                return None
            costs = dict(session.compiler.progress.table.provenance.calls)
            return tuple(
                BucketResult(
                    bucket=buckets[one["number"]],
                    keys=tuple(one["keys"]),
                    tuned=0,
                    judgement=_judgement(one["judgement"]),
                    seconds=(time.monotonic() - started) / len(buckets),
                    uncovered={str(site): int(n) for site, n in one["uncovered"].items()},
                    weights_padded=bool(one["weights_padded"]),
                    left_out=int(one["left_out"]),
                    graphs=int(one["graphs"]),
                    cost=costs.get(
                        session.call_name(
                            buckets[one["number"]], weights_padded=bool(one["weights_padded"])
                        )
                    ),
                )
                for one in record["results"]
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            return None  # a record that this warmup did not write

    def keep(
        self, session: Session, buckets: Sequence[Bucket], results: Sequence[BucketResult]
    ) -> None:
        """Write the record of a finished build, whose *results* have a row for every key."""
        if self.name is None:
            return
        unpadded = [result for result in results if not result.weights_padded]
        shortened = [result.left_out > 0 for result in unpadded]
        graphs = list(self._digests(session, buckets, shortened))
        if None in graphs:
            return
        rows = session.compiler.progress.rows
        keys = dict.fromkeys(key for result in results for key in result.keys)
        self._write(
            self.name,
            {
                "format": _FORMAT,
                "graphs": graphs,
                "shortened": shortened,
                "winners": {key: _winner(rows[key]) for key in keys},
                "results": [
                    {
                        "number": buckets.index(result.bucket),
                        "keys": list(result.keys),
                        "judgement": asdict(result.judgement),
                        "uncovered": dict(result.uncovered),
                        "weights_padded": result.weights_padded,
                        "left_out": result.left_out,
                        "graphs": result.graphs,
                    }
                    for result in results
                ],
            },
        )

    def keep_pace(self, setup: BuildSetup, problems: int, seconds: float) -> None:
        """Write that a build tuned *problems* in *seconds*, for estimates on this device."""
        if problems:
            day = dt.datetime.now(dt.UTC).date().isoformat()
            values = {"problems": problems, "seconds": round(seconds, 1), "day": day}
            self._write(_pace_name(setup), {"format": _FORMAT, **values})

    def pace(self, setup: BuildSetup) -> Pace | None:
        """Return the pace of the last build on this device; None without one."""
        return pace(setup, self.folder)

    def _read(self) -> dict[str, Any] | None:
        return None if self.name is None else _read(self.folder / f"{self.name}.json")

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        """Write *document*; a folder that cannot be written costs time, and nothing else."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_text(self.folder / f"{name}.json", json.dumps(document) + "\n")
            records = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in records[:-_MAX_RECORDS]:
                path.unlink(missing_ok=True)

    def _digests(
        self, session: Session, buckets: Sequence[Bucket], shortened: Sequence[bool]
    ) -> list[str | None]:
        """Return the digest of the graphs of each bucket, up to the first without one."""
        from warmup.inductor.graph_digest import digest_graphs

        found: list[str | None] = []
        for bucket, leaves_out in zip(buckets, shortened, strict=True):
            inputs = session.marked_inputs(bucket)
            model = session.compiler.model.module
            with session.compiler.shortened() if leaves_out else contextlib.nullcontext():
                found.append(digest_graphs(model, inputs.args, inputs.kwargs))
            if found[-1] is None:
                break
        return found


def earlier_builds(
    setup: BuildSetup, model: str, asked: Sequence[object], folder: Path | None = None
) -> EarlierBuilds:
    """Return the records for *model*, which was just loaded, built with the arguments *asked*.

    *folder* is by default that of the user's cache.
    """
    from warmup.inductor.graph_digest import describe_settings

    settings = describe_settings()
    facts = {
        "format": _FORMAT,
        "warmup": __version__,
        "model": model,
        "asked": [str(Path.cwd()), *map(repr, asked)],
        "runtime": asdict(setup.runtime),
        "policy": asdict(setup.policy),
        "settings": settings,
        "variables": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_BUILD_VARIABLES) and not name.endswith(_NO_DECISION)
        },
        "sources": _sources(),
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    name = None if settings is None else hashlib.sha256(text.encode()).hexdigest()
    return EarlierBuilds(folder or _folder(), name)


def pace(setup: BuildSetup, folder: Path | None = None) -> Pace | None:
    """Return the pace of the last build on this device; None where *folder* has none."""
    document = _read((folder or _folder()) / f"{_pace_name(setup)}.json")
    if document is None:
        return None
    problems, seconds = document.get("problems"), document.get("seconds")
    if type(problems) is not int or type(seconds) is not float or problems < 1:
        return None
    return Pace(problems, seconds, str(document.get("day")))


def _folder() -> Path:
    return platformdirs.user_cache_path("inductor-warmup") / "builds"


def _sources() -> dict[str, str]:
    """Return the digest of each imported Python file of the project, and of warmup's own.

    Files of Python and of installed packages are left out: their versions and the graphs stand
    for them.
    """
    installed = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
    own = Path(__file__).resolve().parents[1]
    files = {str(path) for path in own.rglob("*.py")}
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not path.startswith(installed):
            files.add(path)
    found = {}
    for path in sorted(files):
        with contextlib.suppress(OSError):
            found[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return found


def _judgement(recorded: Mapping[str, Any]) -> Judgement:
    eager, default = recorded["eager"], recorded["default"]
    from warmup.tuning.judge import Judgement

    return Judgement(
        error=float(recorded["error"]),
        limit=float(recorded["limit"]),
        reference=str(recorded["reference"]),
        eager=None if eager is None else float(eager),
        default=None if default is None else float(default),
        remark=str(recorded["remark"]),
    )


def _winner(row: Row) -> str:
    return f"{row.winner.family} {row.winner} {row.winner.source_hash}"


def _pace_name(setup: BuildSetup) -> str:
    return f"pace-{setup.runtime.device.slug}"


def _read(path: Path) -> dict[str, Any] | None:
    """Return the document at *path*; None where there is none of this format."""
    try:
        if path.stat().st_size > _MAX_RECORD_BYTES:
            return None
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        return None
    return document
