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

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch.compiler.config as compiler_config
from torch._dynamo import convert_frame
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config

from warmup.core.errors import InductorChangedError
from warmup.core.method import OptionValue
from warmup.inductor.patches import Hooks, Patches
from warmup.inductor.switches import is_set_in_environment, is_switch
from warmup.inductor.versions import Version
from warmup.keys.question import Answers

_FREEZING: Final = "freezing"
_CUDAGRAPHS: Final = "triton.cudagraphs"


class CompileOptions(Hooks):
    """Runs every compile under *options*, and reports options that the caller set otherwise.

    A switch (switches.py) is replaced, even if it comes from the mode of a compile. The caller's
    value of any other option stands.
    """

    def __init__(self, options: Mapping[str, OptionValue], answers: Answers) -> None:
        self._options = dict(options)
        self._answers = answers
        self._inside = threading.local()
        for name in options:
            _entry(inductor_config, name)

    def attach(self, patches: Patches) -> None:
        """Apply the options until *patches* is restored."""
        patches.on_restore(self._deactivate)

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            return patches.keep_during(self._wrap(original))

        patches.wrap(convert_frame, "_compile", wrap)
        patches.wrap(compile_fx_module, "compile_fx", wrap)
        patches.wrap(compile_fx_module, "fx_codegen_and_compile", wrap)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_under_options(*args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return original(*args, **kwargs)
            if (kwargs.get("config_patches") or {}).get(_CUDAGRAPHS, option_value(_CUDAGRAPHS)):
                self._answers.recorded()
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
        """Return all switches, and the other options that the caller did not set."""
        options: dict[str, Any] = {}
        for name, value in self._options.items():
            current = option_value(name)
            is_default = current == _default(inductor_config, name)
            is_default = is_default and not is_set_in_environment(name)
            if is_default or is_switch(name):
                options[name] = value
            if not is_default:
                self._report_difference(name, current)
        return options

    def _thaws(self, options: Mapping[str, Any]) -> bool:
        """Return whether freezing, if it is among the *options* that the table sets, gives way."""
        if not (options.get(_FREEZING) and functorch_config.bundled_autograd_cache):
            return False
        found = "False (an ahead-of-time compile cannot save frozen weights)"
        advice = "templates that need constant weights are not offered there"
        self._answers.contradicted(_FREEZING, "True", found, advice)
        return True

    def _without_switches(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return a compile's *own* options without the switches of the table."""
        kept: dict[str, Any] = {}
        for name, value in own.items():
            option = name.replace("-", "_")  # torch.compile accepts both forms
            if option in self._options:
                self._report_difference(option, value)
            if option not in self._options or not is_switch(option):
                kept[name] = value
        return kept

    def _report_difference(self, name: str, current: Any) -> None:
        if current != self._options[name]:
            report = self._answers.overruled if is_switch(name) else self._answers.contradicted
            report(name, str(self._options[name]), str(current))


def tag_caches(tag: str, patches: Patches, version: Version) -> None:
    """Add *tag* to the keys of inductor's FX, AOTAutograd and Triton caches, in every thread.

    Changes the default below the context-local overrides, because the Triton part of the key is
    read at the first call, outside any compile. A tag set by the caller stays in front.
    """
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


def option_value(name: str) -> Any:
    """Return the value of the inductor option *name* in this thread."""
    target: Any = inductor_config
    for part in name.split("."):
        target = getattr(target, part)
    return target


def tuning_is_on() -> bool:
    """Return whether max-autotune is on in this compile.

    It is off inside subgraph bodies, which inductor lowers through the same hooks
    (torch/_inductor/ir.py, SubgraphBuffer); warmup must leave these alone.
    """
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def _entry(module: Any, name: str) -> Any:
    entry = module._config.get(name)
    if entry is None:
        raise InductorChangedError(f"there is no option {module.__name__}.{name}")
    return entry


def _default(module: Any, name: str) -> Any:
    """Return the option's value in a process that sets nothing."""
    entry = _entry(module, name)
    from_environment = entry.env_value_default
    return from_environment if isinstance(from_environment, (bool, str)) else entry.default
