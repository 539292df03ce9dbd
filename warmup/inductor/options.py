"""`CompileOptions`: runs each compile under the table's inductor options, in any thread.

From torch 2.12 on, assigning ``config.x`` affects the assigning thread only (config overrides are
context variables, torch/utils/_config_module.py), and a ``config.patch`` that ends leaves an
override behind in its thread. warmup therefore neither assigns options nor changes defaults. It
patches them around each frame that dynamo compiles (dynamo reads ``freezing`` itself), around
``compile_fx`` for direct callers, and around ``fx_codegen_and_compile`` for backwards, which are
compiled later.

The table's ``freezing`` gives way where a compile is saved ahead of time (``aot_compile``,
``standalone_compile(aot=True)``): inductor wraps a frozen graph in a function, which cannot be
saved ("expected OutputCode, got function", torch/_functorch/_aot_autograd/autograd_cache.py).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch.compiler.config as compiler_config
from torch._dynamo import convert_frame
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.choices import InductorChoices
from torch._inductor.fx_passes import post_grad
from torch._inductor.virtualized import threadlocal

from warmup.core.errors import InductorChangedError, SettingsError
from warmup.core.events import Contradicted, Overruled
from warmup.core.rows import OptionValue
from warmup.inductor.internals import FOLDING_INTERNALS, check_internals
from warmup.inductor.patches import Function, Hooks, Patches
from warmup.inductor.versions import CHOICES_DOOR, Version
from warmup.keys.question import Answers

# Switches: inductor options that decide what is benchmarked; and all options a table may set.

# Each switch with the value that prevents its benchmarks. The names are those of
# torch/_inductor/config.py; a version of torch without the option lacks the benchmark too.
_QUIET: Final[Mapping[str, bool | int | str]] = {
    "max_autotune_gemm": True,  # lists GEMM candidates, of which warmup selects the row's
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "dynamic_scale_rblock": False,  # re-measures reductions in every process up to torch 2.13
    "benchmark_fusion": False,
    "benchmark_epilogue_fusion": False,
    "benchmark_template_fusion": False,  # its name from torch 2.15 on
    "benchmark_combo_kernel": False,
    "combo_kernels": False,
    "combo_kernel_compile_time_autotune": False,
    "incremental_autotune": False,
    "b2b_gemm_pass": False,
    "distributed_max_autotune_gemm": False,
    "pipeline_max_autotune_gemm": False,
    "runtime_estimations_mms_benchmark": False,
    "triton.multi_kernel": 0,
    "triton.mix_order_reduction_autotune_split_size": False,
}
_OTHER_VARIABLES: Final = {
    "benchmark_template_fusion": "BENCHMARK_EPILOGUE_FUSION",
    "pipeline_max_autotune_gemm": "PIPELINE_GEMM_AUTOTUNING",
}
# What depends on the number of rows otherwise: where a fused operation rounds and whether it is
# contracted to FMA, whether a GEMM is padded and a reduction split, and how variances are computed
# (lowering.py, `use_two_step_variance`: Welford for a single row) and small sums unrolled.
_INVARIANT: Final[Mapping[str, bool | int]] = {
    "emulate_precision_casts": True,
    "shape_padding": False,
    "split_reductions": False,
    "triton.mix_order_reduction": False,
    "cpp.use_two_step_variance_threshold": 0,
    "triton.use_two_step_variance_threshold": 0,
    "unroll_reductions_threshold": 1,
}
_MUST_EXIST: Final = ("max_autotune_gemm", "max_autotune", "coordinate_descent_tuning")
_YIELDING: Final = frozenset(
    {
        "max_autotune_gemm_backends",
        "max_autotune_gemm_search_space",
        "max_autotune_conv_backends",
        "freezing",
        "triton.mix_order_reduction",
        *_INVARIANT,
    }
)


def quiet_switches() -> dict[str, bool | int | str]:
    """Return each switch of the installed torch, with the value that prevents benchmarks."""
    known: Mapping[str, Any] = vars(inductor_config)["_config"]
    for name in _MUST_EXIST:
        if name not in known:
            raise InductorChangedError(f"there is no option {inductor_config.__name__}.{name}")
    return {
        name: value
        for name, value in _QUIET.items()
        if name in known and getattr(known[name], "alias", None) is None
    }


def invariant_options() -> dict[str, bool | int]:
    """Return the options with which a row is computed alike beside any number of rows."""
    known: Mapping[str, Any] = vars(inductor_config)["_config"]
    return {name: value for name, value in _INVARIANT.items() if name in known}


def is_set_in_environment(name: str) -> bool:
    """Return whether inductor read the default of the option *name* from the environment."""
    variable = _OTHER_VARIABLES.get(name, name.removeprefix("triton.").upper())
    return f"TORCHINDUCTOR_{variable}" in os.environ


def check_options(options: Mapping[str, OptionValue]) -> None:
    """Raise a SettingsError where a table may not set one of *options* to its value."""
    for name, value in options.items():
        if name not in _YIELDING and name not in _QUIET:
            raise SettingsError(
                f"the table's policy sets the inductor option {name}, which no build writes",
                "build the table again",
            )
        numbers = {**_QUIET, **_INVARIANT}
        expected = type(numbers[name]) if name in numbers else (str, bool)
        if not isinstance(value, expected):
            raise SettingsError(
                f"the table's policy sets the inductor option {name} to {value!r}",
                "build the table again",
            )


_FREEZING: Final = "freezing"


class CompileOptions(Hooks):
    """Runs every compile under *options*, and reports options that the caller set otherwise.

    A switch is replaced, even if it comes from the mode of a compile. The caller's value of any
    other option stands.
    """

    _choices: TaggedChoices | None = None

    def __init__(self, options: Mapping[str, OptionValue], answers: Answers) -> None:
        self._options = dict(options)
        self._answers = answers
        self._inside = threading.local()
        for name in options:
            _entry(inductor_config, name)

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)

        def wrap(original: Function) -> Callable[..., Any]:
            return patches.keep_during(self._wrap(original))

        patches.wrap(convert_frame, "_compile", wrap)
        patches.wrap(compile_fx_module, "compile_fx", wrap)
        patches.wrap(compile_fx_module, "fx_codegen_and_compile", wrap)

    def tag_caches(self, tag: str, patches: Patches, version: Version) -> None:
        """Add *tag* to the keys of inductor's FX, AOTAutograd and Triton caches in every thread."""
        # Changes the default below the context-local overrides: the Triton part of the key is read
        # at the first call, outside any compile. A tag set by the caller stays in front.
        before = compiler_config.cache_key_tag
        value = f"{before}+{tag}" if before else tag
        entry = _entry(compiler_config, "cache_key_tag")
        layer = "env_value_default" if isinstance(entry.env_value_default, str) else "default"
        original = getattr(entry, layer)
        setattr(entry, layer, value)
        version.forget_config_hash(compiler_config)

        def undo() -> None:
            setattr(entry, layer, original)
            version.forget_config_hash(compiler_config)

        patches.on_restore(undo)
        if compiler_config.cache_key_tag != value:  # the caller assigned a tag in this thread
            compiler_config.cache_key_tag = value
            patches.on_restore(lambda: setattr(compiler_config, "cache_key_tag", before))
        if version.has(CHOICES_DOOR[0]):
            self._choices = TaggedChoices(tag, self._answers)
            patches.on_restore(self._choices.withdraw)

    def _wrap(self, original: Function) -> Callable[..., Any]:
        def compile_under_options(*args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return original(*args, **kwargs)
            if kwargs.get("config_patches"):  # the mode or options of this torch.compile
                kwargs["config_patches"] = self._without_switches(kwargs["config_patches"])
            outer: dict[str, Any] | None = getattr(self._inside, "options", None)
            if outer is not None:
                with inductor_config.patch({_FREEZING: False} if self._thaws(outer) else {}):
                    return original(*args, **kwargs)
            options = self._options_to_set()
            if self._thaws(options):
                del options[_FREEZING]
            self._inside.options = options
            try:
                with inductor_config.patch(options):
                    return original(*args, **kwargs)
            finally:
                self._inside.options = None

        return compile_under_options

    def _options_to_set(self) -> dict[str, Any]:
        if self._choices is not None:
            self._choices.give_way()
        options: dict[str, Any] = {}
        for name, value in self._options.items():
            current = option_value(name)
            is_default = current == _default(inductor_config, name)
            is_default = is_default and not is_set_in_environment(name)
            if is_default or name in _QUIET:
                options[name] = value
            if not is_default:
                self._report_difference(name, current)
        return options

    def _thaws(self, options: Mapping[str, Any]) -> bool:
        if not (options.get(_FREEZING) and functorch_config.bundled_autograd_cache):
            return False
        found = "False (an ahead-of-time compile cannot save frozen weights)"
        advice = "templates that need constant weights are not offered there"
        self._answers.emit(Contradicted(_FREEZING, "True", found, advice))
        return True

    def _without_switches(self, own: Mapping[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in own.items():
            option = name.replace("-", "_")  # torch.compile accepts both forms
            if option in self._options:
                self._report_difference(option, value)
            if option not in self._options or option not in _QUIET:
                kept[name] = value
        return kept

    def _report_difference(self, name: str, current: Any) -> None:
        if current != self._options[name]:
            event = Overruled if name in _QUIET else Contradicted
            self._answers.emit(event(name, str(self._options[name]), str(current)))


class TaggedChoices:
    """Choices that decide nothing, whose ``uuid()`` puts *tag* into the keys of graphs.

    The keys have it whatever tag a program sets; inductor's other keys have the tag alone. Torch
    composes these choices with a program's own, of which those without ``uuid()`` stand alone.
    """

    def __init__(self, tag: str, answers: Answers) -> None:
        self._key, self._answers = f"warmup {tag}", answers
        self._register, self._unregister = map(pkgutil.resolve_name, CHOICES_DOOR)
        choices = InductorChoices()  # no class of ours: it is the handler of threads that follow
        vars(choices)["uuid"] = lambda: tag
        self._is_registered = self._pass(self._register, lambda: choices)

    def give_way(self) -> None:
        """Withdraw where torch would refuse the class of choices that this compile sets."""
        make = inductor_config.inductor_choices_class if self._is_registered else None
        if make is not None and not hasattr(own := make(), "uuid"):
            self.withdraw()
            self._report(type(own).__name__)

    def withdraw(self) -> None:
        if self._is_registered:
            self._is_registered = not self._pass(self._unregister)

    def _pass(self, door: Function, *factory: Any) -> bool:
        # Torch sets the handler of this thread as well, where a program may have one of its own.
        handlers = vars(threadlocal)
        before = dict(handlers)
        try:
            door(self._key, *factory)
        except Exception as error:  # noqa: BLE001  of a program's choices, which torch makes anew
            self._report(f"refused by torch ({error})")
            return False
        finally:
            handlers.clear()
            handlers.update(before)
        return True

    def _report(self, found: str) -> None:
        advice = "without uuid(), keys of cached graphs have the table in their tag alone"
        self._answers.emit(
            Contradicted("inductor_choices_class", "choices with uuid()", found, advice)
        )


def option_value(name: str) -> Any:
    """Return the value of the inductor option *name* in this thread."""
    target: Any = inductor_config
    for part in name.split("."):
        target = getattr(target, part)
    return target


def tuning_is_on() -> bool:
    """Return whether max-autotune is on in this compile."""
    # It is off inside subgraph bodies, which inductor lowers through the same hooks
    # (torch/_inductor/ir.py, SubgraphBuffer); warmup must leave these alone.
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def _entry(module: Any, name: str) -> Any:
    entry = module._config.get(name)
    if entry is None:
        raise InductorChangedError(f"there is no option {module.__name__}.{name}")
    return entry


def _default(module: Any, name: str) -> Any:
    entry = _entry(module, name)
    from_environment = entry.env_value_default
    return from_environment if isinstance(from_environment, (bool, str)) else entry.default


_AUTOTUNING_LOGGERS = (
    "torch._inductor.select_algorithm",
    "torch._inductor.runtime.triton_heuristics",
)


def silence_autotuning(patches: Patches) -> dict[str, bool]:
    """Drop inductor's autotuning messages until restored; return the options for that."""
    patches.wrap(select_algorithm, "PRINT_AUTOTUNE", lambda _: False)
    for name in _AUTOTUNING_LOGGERS:
        logger = logging.getLogger(name)
        logger.addFilter(_drop)
        patches.on_restore(functools.partial(logger.removeFilter, _drop))
    return {"max_autotune_report_choices_stats": False}


@contextlib.contextmanager
def compiling_with(options: Mapping[str, OptionValue]) -> Iterator[None]:
    """Compile with *options* of inductor in this context, and without its autotuning messages."""
    with Patches() as patches, inductor_config.patch({**silence_autotuning(patches), **options}):
        yield


def _drop(record: logging.LogRecord) -> bool:
    return record.levelno > logging.ERROR


@contextlib.contextmanager
def mm_unfolded() -> Iterator[None]:
    """Compile an add after an mm as the epilogue of the mm while open, in every thread.

    Inductor does so on a GPU where every use of the sum is pointwise, which a key does not tell,
    and folds the add into an addmm elsewhere (fx_passes/post_grad.py, is_valid_addmm_fusion).
    """
    check_internals(FOLDING_INTERNALS)
    with Patches() as patches:
        patches.wrap(post_grad, "should_prefer_unfused_addmm", lambda _: lambda _match: True)
        yield
