"""The deployment examples: each file against its own format's schema, and every command in them.

All offline: the schemas come with the validators (docs/decisions/0005-dependencies.md).
"""

from __future__ import annotations

import io
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from dockerfile_parse import DockerfileParser
from kubernetes_validate import latest_version, validate

from warmup.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples/deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VLLM_MANIFESTS = sorted((DEPLOY / "kubernetes/vllm").glob("*.yaml"))
COMPOSE = DEPLOY / "docker/compose.yaml"
DOCKERFILE = DEPLOY / "docker/Dockerfile"
UNIT = DEPLOY / "systemd/warmup-serve.service"
PAGES = [
    ROOT / f"docs/how-to/{name}.md"
    for name in (
        *("add-to-an-existing-server", "bake-into-a-docker-image", "deploy-on-kubernetes"),
        *("run-under-systemd", "vllm-and-sglang"),
    )
]


def documents(paths: list[Path]) -> list[dict[str, Any]]:
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def pod_of(kind: str, paths: list[Path] = MANIFESTS) -> dict[str, Any]:
    (pod,) = (one["spec"]["template"]["spec"] for one in documents(paths) if one["kind"] == kind)
    return pod  # type: ignore[no-any-return]


def containers(*pods: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for pod in pods for one in (*pod["initContainers"], *pod["containers"])]


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    """Return the variables with a value; those that the cluster fills in have none."""
    return {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}


def image() -> list[dict[str, Any]]:
    parser = DockerfileParser(fileobj=io.BytesIO(DOCKERFILE.read_bytes()))
    return [entry for entry in parser.structure if entry["instruction"] != "COMMENT"]


def test_every_manifest_follows_the_schema_of_its_kind() -> None:
    for version in ("1.29", latest_version()):  # the oldest that is supported, and the newest
        for resource in documents([*MANIFESTS, *VLLM_MANIFESTS]):
            validate(resource, version, strict=True)


def test_every_container_is_locked_down() -> None:
    """Read-only root, no privileges, a UID that no image knows, and no home folder."""
    pods = [pod_of(kind) for kind in ("Job", "Deployment")]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 1000770000
    vllm = [pod_of(kind, VLLM_MANIFESTS) for kind in ("Job", "Deployment")]
    for container in containers(*pods, *vllm):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
    for container in containers(*pods):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert "HOME" not in environment_of(container)


def test_init_container_and_server_share_one_cache_and_one_table() -> None:
    """The warm caches are found: the same volume, path and variables in both.

    The table is the ConfigMap's file, which nobody can write.
    """
    pod = pod_of("Deployment")
    (prime,), (server,) = pod["initContainers"], pod["containers"]
    assert environment_of(prime) == environment_of(server)
    assert prime["volumeMounts"] == server["volumeMounts"]
    (path,) = [m["mountPath"] for m in server["volumeMounts"] if m["name"] == "cache"]
    assert environment_of(server)["TORCHINDUCTOR_CACHE_DIR"].startswith(f"{path}/")
    assert {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume} == {"cache", "tmp"}
    (volume,) = [one for one in pod["volumes"] if "configMap" in one]
    for container in (prime, server):
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == volume["name"]]
        assert mount["readOnly"] is True
        assert f"{mount['mountPath']}/table.json" in container["command"]


def test_the_image_is_pinned_and_runs_as_a_numeric_user_in_exec_form() -> None:
    """`runAsNonRoot` can judge the user, and signals reach `warmup run`.

    All that it copies is in the checkout but the table, the argument TABLE.
    """
    by_name = {one["instruction"]: one["value"] for one in image()}
    assert re.fullmatch(r"\S+:\d\S*", image()[0]["value"])
    assert re.fullmatch(r"[1-9]\d*:0", by_name["USER"])
    assert json.loads(by_name["ENTRYPOINT"])[:2] == ["warmup", "run"]
    assert json.loads(by_name["CMD"])[0] == "python"
    copies = [one["value"].split()[:-1] for one in image() if one["instruction"] == "COPY"]
    sources = [source for words in copies for source in words]
    assert [name for name in sources if not (ROOT / name).exists()] == ["${TABLE}"]


def test_compose_follows_the_compose_specification() -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    words = [sys.executable, "-m", "check_jsonschema", *schema, str(COMPOSE)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def unit_entries() -> dict[str, list[str]]:
    """Return the unit's settings: name to all its values, continued lines joined."""
    text = UNIT.read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(" ".join(value.split()))
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text(encoding="utf-8")
    text = re.sub(r"/opt/model-server/venv/bin/\w+", shutil.which("true") or "", text)
    unit = tmp_path / UNIT.name
    unit.write_text(text, encoding="utf-8")
    words = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, [x for x in done.stderr.splitlines() if unit.name in x]) == (0, [])


def warmup_words(line: str) -> Iterator[list[str]]:
    """Yield what follows ``warmup`` in each part of a shell line that runs it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # prose or output, not a command
        return
    for is_operator, part in itertools.groupby(words, key=lambda word: word[0:1] in set("|&;<>")):
        found = [] if is_operator else list(part)
        while found and (re.fullmatch(r"\w+=.*", found[0]) or found[0] == "sudo"):
            found.pop(0)
        if found[:1] == ["kubectl"] and "--" in found:
            found = found[found.index("--") + 1 :]
        if len(found) > 1 and Path(found[0]).name == "warmup" and found[1].isalpha():
            yield found[1:]


def shell_lines(page: str) -> Iterator[str]:
    """Yield the lines of a page's code blocks, fenced or indented, continued lines joined."""
    fenced = re.findall(r"^ *```\w*\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^    .*$", page, re.MULTILINE)
    for block in (*fenced, "\n".join(indented)):
        yield from (line.strip() for line in block.replace("\\\n", " ").splitlines())


def lists_in(document: Any) -> Iterator[list[str]]:
    """Yield each command of a manifest: entrypoint or command, with what is appended to it."""
    if isinstance(document, list):
        for one in document:
            yield from lists_in(one)
    if isinstance(document, dict):
        for first, second in (("command", "args"), ("entrypoint", "command")):
            if first in document:
                yield [str(word) for word in (*document[first], *document.get(second, ()))]
        for value in document.values():
            yield from lists_in(value)


def commands_of_manifests() -> Iterator[tuple[str, list[str]]]:
    for path in (*MANIFESTS, *VLLM_MANIFESTS, COMPOSE):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            for words in lists_in(document):
                if words[0] == "warmup":
                    yield path.name, words[1:]
            if document.get("kind") == "ConfigMap":
                lines = [line for text in document["data"].values() for line in text.splitlines()]
                yield from ((path.name, found) for line in lines for found in warmup_words(line))


def commands_of_texts() -> Iterator[tuple[str, list[str]]]:
    by_name = {one["instruction"]: one["value"] for one in image()}
    yield DOCKERFILE.name, [*json.loads(by_name["ENTRYPOINT"]), *json.loads(by_name["CMD"])][1:]
    lines = [(DOCKERFILE.name, one["value"]) for one in image() if one["instruction"] == "RUN"]
    lines += [(UNIT.name, unit_entries()[name][0]) for name in ("ExecStartPre", "ExecStart")]
    for path in PAGES:
        lines += [(path.name, line) for line in shell_lines(path.read_text(encoding="utf-8"))]
    yield from ((name, found) for name, line in lines for found in warmup_words(line))


def test_every_command_is_one_that_warmup_takes() -> None:
    """Command, options, values and arguments parse by the command line's own parser.

    Every file and page has at least one command; those of its sentences exist too.
    """
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    found = [*commands_of_manifests(), *commands_of_texts()]
    for place, (name, *rest) in found:
        assert name in known, (place, name)
        known[name].make_context(name, rest)
    files = (*MANIFESTS, COMPOSE, DOCKERFILE, UNIT, *PAGES)
    assert {path.name for path in files} <= {place for place, _ in found}
    for page in PAGES:
        named = re.findall(r"`warmup ([a-z]+)[ `]", page.read_text(encoding="utf-8"))
        assert [name for name in named if name not in known] == [], page
    with pytest.raises(Exception, match="No such option"):
        known["audit"].make_context("audit", ["audit.jsonl", "--fail-when", "miss"])
