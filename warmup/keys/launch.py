"""Row kinds ``launch`` and ``autotune``: a generated Triton kernel's config, and a user's kernel's.

    launch triton_poi_fused_mul_silu x=8388608 args=*bf16,*bf16,i32 source=3f2a9c0d41b7e865

The name is inductor's without its number. Sizes are inductor's size hints, which it rounds up to
powers of two. ``args`` is the kernel's signature, and ``source`` a hash of its code without its
name. A key has nothing that does not change which config is fastest: no cache folder, process,
device ordinal, or option that inductor writes beside the kernel.

    autotune scale n=4096 args=*bf16,*bf16 configs=0b7d41e8653f2a9c source=3f2a9c0d41b7e865

A ``@triton.autotune`` kernel chooses among its own configs. Outside of a graph a key has what
Triton chooses by: values of the ``key`` arguments and all dtypes. In a graph, where inductor
chooses at the first call, it has that call's integers, constants, dtypes and shapes.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from warmup.core.phases import BuildStage
from warmup.core.roofline import PASSES, Work, item_bytes
from warmup.core.rows import Family, Winner
from warmup.keys.kind import Kind, Problem


def _work(ingredients: Mapping[str, str]) -> Work | None:
    # Inductor rounds the sizes in these keys up to powers of two, so each is more than half of what
    # the key says. At least one tensor has all elements, and at most all of them have.
    words = ("kind", "kernel", "args", "source")
    args = ingredients["args"].split(",")
    tensors = [item_bytes(word[1:]) for word in args if word.startswith("*")]
    sizes = [int(value) for name, value in ingredients.items() if name not in words]
    if not sizes or not tensors:
        return None
    least = math.prod(size // 2 + 1 for size in sizes) * min(tensors)
    return Work("", None, least, most_moved=PASSES * math.prod(sizes) * sum(tensors))


LAUNCH: Final = Kind(
    name="launch",
    pattern=re.compile(
        r"launch [A-Za-z_][A-Za-z0-9_]*(?: [a-z][a-z0-9_]{0,7}=[0-9]+){0,5}"
        r" args=[A-Za-z0-9_*,<>:\[\].]+ source=[0-9a-f]{16}"
    ),
    words=("kind", "kernel"),
    fixed=2,
    families=frozenset({Family.LAUNCH}),
    nearest_by=("x", "y"),
    hooks="warmup.inductor.launch.hooks:LaunchConfigs",
    sites=frozenset({"launch"}),
    work=_work,
    hidden=frozenset({"args", "source"}),
    summary="launch configs",
    library_default="the config of default mode",
    stage=BuildStage.LAUNCH_SEARCHES,
    is_named=True,
    is_fixed_by_row=True,
)
AUTOTUNE: Final = Kind(
    name="autotune",
    pattern=re.compile(
        r"autotune [A-Za-z_][A-Za-z0-9_]*(?: [A-Za-z_][A-Za-z0-9_]*=[A-Za-z0-9_.+-]+)*"
        r" args=[A-Za-z0-9_*,\[\]]+ configs=[0-9a-f]{16} source=[0-9a-f]{16}"
    ),
    words=("kind", "kernel"),
    fixed=2,
    families=frozenset({Family.LAUNCH}),
    hooks="warmup.inductor.launch.user_kernels:UserConfigs",
    sites=frozenset({"triton.autotune"}),
    work=lambda _ingredients: None,  # what a user's kernel does with its arguments is not known
    hidden=frozenset({"args", "configs", "source"}),
    summary="configs of @triton.autotune kernels",
    library_default="the first config of their list",
)
_KERNEL_NUMBER = re.compile(r"_[0-9]+$")
_DEF = re.compile(r"^def [^(]+\(")
_MAX_NAME: Final = 200
_HASH_DIGITS: Final = 16


def unnumbered(kernel: str) -> str:
    """Return the name of a generated kernel without the number that its graph gave it."""
    return _KERNEL_NUMBER.sub("", kernel)[:_MAX_NAME]


def kernel_in(key: str) -> str | None:
    """Return the name of the generated kernel in *key*; None for a key of another kind."""
    words = key.split(" ", 2)
    return words[1] if words[0] == LAUNCH.name else None


@dataclass(frozen=True)
class LaunchProblem(Problem):
    """A generated kernel for which inductor chooses a launch config.

    ``sizes`` are inductor's size hints by prefix (``x``, ``y``, ``r0_``), in elements.
    """

    kind = LAUNCH

    kernel: str
    sizes: tuple[tuple[str, int], ...]
    args: tuple[str, ...]
    source: str

    @classmethod
    def of(
        cls, name: str, sizes: Mapping[str, int] | None, args: Iterable[str], code: str
    ) -> LaunchProblem:
        """Return the problem of the kernel *name*; *code* is its source from ``def`` on."""
        return cls(unnumbered(name), tuple((sizes or {}).items()), tuple(args), _hash_of(code))

    def _spell(self) -> str:
        words = ["launch", self.kernel]
        words += [f"{name}={size}" for name, size in self.sizes]
        words += [f"args={','.join(self.args) or 'none'}", f"source={self.source}"]
        return " ".join(words)


@dataclass(frozen=True)
class AutotuneProblem(Problem):
    """A ``@triton.autotune`` kernel that is about to choose among its own ``configs``.

    ``values`` are its arguments that decide, by name.
    """

    kind = AUTOTUNE

    kernel: str
    values: tuple[tuple[str, object], ...]
    args: tuple[str, ...]
    configs: tuple[Winner, ...]
    code: str

    def _spell(self) -> str:
        words = ["autotune", unnumbered(self.kernel)]
        words += [f"{name}={value}" for name, value in self.values]
        words += [f"args={','.join(self.args) or 'none'}"]
        words += [f"configs={_hash_of(' '.join(map(str, self.configs)))}"]
        return " ".join((*words, f"source={_hash_of(self.code)}"))


def _hash_of(code: str) -> str:
    nameless = _DEF.sub("(", code.strip(), count=1)
    return hashlib.sha256(nameless.encode()).hexdigest()[:_HASH_DIGITS]
