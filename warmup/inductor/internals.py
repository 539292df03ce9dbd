"""`check_internals`: every internal of torch that warmup uses, checked before it is patched.

If an upgrade of torch moves or changes an internal, this check fails with its name.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Final

from warmup.core.errors import InductorChangedError

# "module:qualified name" or "module:callable(parameters that warmup relies on)".
WORKER_INTERNALS: Final = (
    "torch._inductor.async_compile:AsyncCompile.use_process_pool()",
    "torch._inductor.async_compile:maybe_warm_pool()",
    "torch._inductor.runtime.compile_tasks:_set_triton_ptxas_path()",
)
ASSEMBLER_INTERNALS: Final = (
    "torch.utils._triton:triton_hash_with_backend.cache_clear",
    "triton.backends.nvidia.compiler:CUDABackend.hash.cache_clear",
    "triton.backends.nvidia.compiler:get_ptxas_version.cache_clear",
)
DEFERRED_KERNEL_INTERNALS: Final = (
    "torch._dynamo.convert_frame:compile_lock",
    "torch._guards:TracingContext.try_get()",
    "torch._guards:tracing(context)",
    "torch._inductor.async_compile:AsyncCompile.use_process_pool()",
    "torch._inductor.async_compile:AsyncCompile.wait(self, scope)",
    "torch._inductor.codecache:CodeCacheFuture",
    "torch._inductor.codecache:FxGraphCache._filter_backed_symints(inputs)",
    "torch._inductor.codecache:FxGraphCache._get_shape_env()",
    "torch._inductor.codecache:FxGraphCache._save_graph(key, compiled_graph, example_inputs)",
    "torch._inductor.output_code:CompiledFxGraph.__call__(self, inputs)",
    "torch._inductor.output_code:CompiledFxGraph.prepare_for_serialization(self)",
    "torch._inductor.output_code:CompiledFxGraph.set_triton_bundle(self, triton_bundle)",
    "torch._inductor.triton_bundler:TritonBundler.begin_compile()",
    "torch._inductor.triton_bundler:TritonBundler.collect()",
    "torch._inductor.triton_bundler:TritonBundler.end_compile()",
    "torch.fx.experimental.symbolic_shapes:ShapeEnv.get_pruned_guards(self, symints)",
    "torch.fx.experimental.symbolic_shapes:ShapeEnv.produce_guards_expression(self, placeholders)",
    "torch.fx.experimental.symbolic_shapes:ShapeEnv.suppress_guards(self)",
)
# Checked where pad decisions are drawn.
PAD_SAMPLE_INTERNALS: Final = (
    "torch._inductor.fx_passes.pad_mm:check_device",
    "torch._inductor.fx_passes.pad_mm:get_padded_length(x, alignment_size)",
)
FOLDING_INTERNALS: Final = (
    "torch._inductor.fx_passes.post_grad:is_valid_addmm_fusion(match)",
    "torch._inductor.fx_passes.post_grad:should_prefer_unfused_addmm(match)",
)
INTERNALS: Final = (
    *WORKER_INTERNALS,
    *DEFERRED_KERNEL_INTERNALS,
    *FOLDING_INTERNALS,
    "torch._C._aoti:alloc_tensors_by_stealing_from_void_ptrs",
    "torch._C._aoti:unsafe_alloc_void_ptrs_from_tensors",
    "torch._C._dynamo.eval_frame:_debug_get_cache_entry_list",
    "torch._C._dynamo.eval_frame:reset_code",
    "torch._C._dynamo.guards:RootGuardManager.add_epilogue_lambda_guard",
    "torch._dynamo:reset()",
    "torch._dynamo:mark_static_address(t, guard)",
    "torch._dynamo:mark_dynamic(t, index, hint_override, min, max)",
    "torch._dynamo:maybe_mark_dynamic(t, index)",
    "torch._dynamo.cache_size:CacheSizeRelevantForFrame",
    "torch._dynamo.config:accumulated_recompile_limit",
    "torch._dynamo.config:recompile_limit",
    "torch._dynamo.convert_frame:ConvertFrame.__call__(self, frame)",
    "torch._dynamo.convert_frame:_compile(code)",
    "torch._dynamo.convert_frame:output_codes.seen_ids",
    "torch._dynamo.eval_frame:OptimizedModule",
    "torch._dynamo.eval_frame:_debug_get_cache_entry_list",
    "torch._dynamo.device_interface:DeviceGuard",
    "torch._dynamo.device_interface:get_interface_for_device(device)",
    "torch._dynamo.exc:Unsupported",
    "torch._dynamo.guards:DeletedGuardManagerWrapper(reason)",
    "torch._dynamo.source:GlobalStateSource.make_guard(self, fn)",
    "torch._dynamo.utils:ChromiumEventLogger.log_event_end(self, event_name)",
    "torch._dynamo.utils:ChromiumEventLogger.log_event_start(self, event_name)",
    "torch._dynamo.types:ConvertFrameReturn.guarded_code",
    "torch._dynamo.utils:CompilationMetrics.fail_reason",
    "torch._dynamo.utils:CompilationMetrics.recompile_reason",
    "torch._dynamo.utils:counters",
    "torch._dynamo.utils:get_compilation_metrics()",
    "torch._dynamo.utils:graph_break_reasons",
    "torch._functorch.config:bundled_autograd_cache",
    "torch._functorch.config:enable_autograd_cache",
    "torch._functorch.config:force_non_lazy_backward_lowering",
    "torch._guards:CompileContext.current_compile_id()",
    "torch._guards:TracingContext.extract_stack()",
    "torch._guards:TracingContext.get()",
    (
        "torch._inductor.choices:InductorChoices._finalize_template_configs"
        "(self, template_choices, kernel_inputs, templates, op_name, kwarg_overrides)"
    ),
    (
        "torch._inductor.autotune_process:ExternKernelBenchmarkRequest(kernel_name, "
        "input_tensor_meta, output_tensor_meta, extra_args, callable_path, kwargs, has_out_variant)"
    ),
    "torch._inductor.autotune_process:ExternKernelGPUBenchmarkRequest.make_run_fn",
    "torch._inductor.autotune_process:TensorMeta(device, dtype, sizes, strides, offset)",
    (
        "torch._inductor.autotune_process:TritonBenchmarkRequest(kernel_name, "
        "input_tensor_meta, output_tensor_meta, extra_args, module_path, module_cache_key, "
        "num_stages, num_warps, num_consumer_groups, num_buffers_warp_spec, "
        "matrix_instr_nonkdim, waves_per_eu, kpack, workspace_size, workspace_zero_fill)"
    ),
    "torch._inductor.autotune_process:TritonGPUBenchmarkRequest.make_run_fn",
    "torch._inductor.choices:InductorChoices.can_fuse(scheduler, node1, node2, shared_data_score)",
    (
        "torch._inductor.choices:InductorChoices.get_ktc"
        "(self, kernel_inputs, template, op_name, kwarg_overrides)"
    ),
    "torch._inductor.choices:get_template_heuristic(template_name, device_type, op_name)",
    (
        "torch._inductor.codegen.cpp_gemm_template:CppGemmTemplate.add_choices"
        "(choices, layout, input_nodes)"
    ),
    "torch._inductor.codegen.common:KernelTemplate._template_from_string(source)",
    "torch._inductor.codegen.cpp_template_kernel:CppTemplateCaller",
    (
        "torch._inductor.codegen.cpp_template_kernel:CppTemplateKernel.def_kernel"
        "(self, inputs, outputs)"
    ),
    "torch._inductor.codegen.cpp_template_kernel:CppTemplateKernel.render(self, template)",
    "torch._inductor.codegen.cpp_template_kernel:parse_expr_with_index_symbols(expr)",
    "torch._inductor.compile_fx:compile_fx(model_, example_inputs_, inner_compile, config_patches)",
    "torch._inductor.compile_fx:fx_codegen_and_compile",
    "torch._inductor.config:cpp.enable_kernel_profile",
    "torch._inductor.cpu_vec_isa:supported_vec_isa_list",
    "torch._inductor.cpu_vec_isa:valid_vec_isa_list()",
    "torch._inductor.cpu_vec_isa:x86_isa_checker()",
    "torch._inductor.config:freezing",
    "torch._inductor.config:max_autotune",
    "torch._inductor.config:max_autotune_gemm",
    "torch._inductor.config:_config",
    "torch._inductor.config:triton.num_decompose_k_splits",
    "torch._inductor.cpp_builder:get_cpp_compiler()",
    "torch._inductor.exc:InvalidCxxCompiler",
    "torch._inductor.async_compile:AsyncCompile.process_pool()",
    "torch._inductor.async_compile:AsyncCompile.triton(self, kernel_name, source_code)",
    "torch._inductor.async_compile:get_compile_threads()",
    "torch._inductor.async_compile:size_hints_regex",
    "torch._inductor.codecache:CppCodeCache.load",
    "torch._inductor.codecache:FxGraphCache._lookup_graph(key)",
    "torch._inductor.codecache:FxGraphCache.cache_hit_post_compile(graph, cache_info, constants)",
    "torch._inductor.codecache:PersistentCache.lookup(self, choices, op, inputs, benchmark)",
    "torch._inductor.codecache:PyCodeCache.load_by_key_path(key, path)",
    "torch._inductor.codecache:PyCodeCache.modules_no_attr",
    "torch._inductor.config:autotune_lookup_table",
    "torch._inductor.freezing:freeze(dynamo_gm, aot_autograd_gm, example_inputs)",
    "torch._inductor.fx_passes.pad_mm:_should_pad(match, mat1, mat2, op, input)",
    "torch._inductor.fx_passes.pad_mm:get_alignment_size(x)",
    "torch._inductor.fx_passes.pad_mm:get_cached_base_mm_benchmark_time(key)",
    "torch._inductor.fx_passes.pad_mm:get_cached_should_pad(key)",
    "torch._inductor.fx_passes.pad_mm:get_do_bench()",
    "torch._inductor.fx_passes.pad_mm:is_mm_compute_bound(M, K, N, dtype)",
    "torch._inductor.fx_passes.pad_mm:is_padded_faster(key, ori_time, pad_time)",
    "torch._inductor.fx_passes.pad_mm:should_exclude_padding_time(match, arg_name)",
    "torch._inductor.graph:GraphLowering.codegen(self)",
    "torch._inductor.graph:GraphLowering.compile_to_module(self)",
    "torch._inductor.graph:GraphLowering.__init__(self, gm)",
    "torch._inductor.graph:GraphLowering.run(self)",
    "torch._inductor.graph:GraphLowering.run_node(self, n)",
    "torch._inductor.graph:GraphLowering.try_get_buffer(self, buffer_name)",
    "torch._inductor.ir:Buffer(name, layout)",
    "torch._inductor.ir:ComputedBuffer",
    "torch._inductor.ir:Pointwise.inner_fn_str(self)",
    "torch._inductor.ir:MutableBox.realize(self)",
    "torch._inductor.ir:TensorBox",
    "torch._inductor.ir:FlexibleLayout.get_fixed_layout_without_freezing(self)",
    "torch._inductor.ir:MutableBox",
    (
        "torch._inductor.ir:Reduction.num_splits(device, dst_dtype, src_dtype, inner_fn, ranges, "
        "reduction_ranges, reduction_type, reduction_numel, input_node)"
    ),
    "torch._inductor.kernel_inputs:MMKernelInputs.mat1mat2",
    "torch._inductor.kernel_inputs:MMKernelInputs.mnk_symbolic",
    "torch._inductor.kernel.bmm:bmm_template.uid",
    "torch._inductor.kernel.mm:decompose_k_subgraph_template.uid",
    "torch._inductor.kernel.mm_common:mm_grid",
    "torch._inductor.kernel.mm:get_scaling_options(mat_a, mat_b, scale_a_size, scale_b_size)",
    "torch._inductor.kernel.mm:mm_template.uid",
    "torch._inductor.kernel.mm:persistent_tma_mm_template.uid",
    "torch._inductor.kernel.mm:scaled_mm_device_tma_epilogue_scaling_template.uid",
    (
        "torch._inductor.kernel_template_choice:KernelTemplateChoice"
        "(template, params, extra_kwargs, layout, inputs)"
    ),
    "torch._inductor.output_code:CompiledFxGraph.post_compile(self, example_inputs, constants)",
    "torch._inductor.runtime.benchmarking:Benchmarker",
    "torch._inductor.runtime.cache_dir_utils:cache_dir()",
    "torch._inductor.runtime.cache_dir_utils:triton_cache_dir(device)",
    "torch._inductor.runtime.compile_tasks:_reload_python_module(key, path, set_sys_modules)",
    (
        "torch._inductor.runtime.coordinate_descent_tuner:CoordescTuner.autotune"
        "(self, func, baseline_config)"
    ),
    "torch._inductor.runtime.hints:HeuristicType.USER_AUTOTUNE",
    "torch._inductor.runtime.hints:ReductionHint.OUTER_TINY",
    "torch._inductor.runtime.hints:TRITON_MAX_BLOCK",
    "torch._inductor.runtime.runtime_utils:triton_config_to_hashable(cfg)",
    (
        "torch._inductor.runtime.triton_heuristics:CachingAutotuner.precompile"
        "(self, warm_cache_only, reload_kernel, static_triton_bundle_key)"
    ),
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.autotune_to_one_config(self, args)",
    (
        "torch._inductor.runtime.triton_heuristics:CachingAutotuner.coordinate_descent_tuning"
        "(self, launcher)"
    ),
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner._precompile_config(self, cfg)",
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.bench(self, launcher)",
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.clone_args(self, args, kwargs)",
    (
        "torch._inductor.runtime.triton_heuristics:CachingAutotuner.reset_to_zero_args"
        "(self, args, kwargs)"
    ),
    "torch._inductor.runtime.triton_heuristics:NoTritonConfigsError",
    (
        "torch._inductor.runtime.triton_heuristics:persistent_reduction(size_hints, "
        "reduction_hint, triton_meta, filename, inductor_meta, return_configs)"
    ),
    (
        "torch._inductor.runtime.triton_heuristics:pointwise(size_hints, triton_meta, "
        "tile_hint, filename, min_elem_per_thread, inductor_meta, return_configs)"
    ),
    (
        "torch._inductor.runtime.triton_heuristics:reduction(size_hints, "
        "reduction_hint, triton_meta, filename, inductor_meta, return_configs)"
    ),
    "torch._inductor.runtime.triton_heuristics:config_from_dict(config)",
    (
        "torch._inductor.runtime.triton_heuristics:generate_lookup_hash_from_source_code"
        "(size_hints_str, source_code)"
    ),
    "torch._inductor.pattern_matcher:Match.output_node(self)",
    (
        "torch._inductor.select_algorithm:AlgorithmSelectorCache.__call__"
        "(self, name, choices, input_nodes, layout)"
    ),
    "torch._inductor.kernel.conv:conv2d_template",
    "torch._inductor.kernel.conv:conv3d_template",
    "torch._inductor.kernel.mm_grouped:triton_grouped_mm_template",
    "torch._inductor.select_algorithm:AlgorithmSelectorCache.benchmark_in_sub_process",
    "torch._inductor.select_algorithm:ExternKernelCaller.to_callable(self)",
    "torch._inductor.select_algorithm:TritonTemplateCaller",
    (
        "torch._inductor.select_algorithm:AlgorithmSelectorCache.get_inputs"
        "(choices, input_nodes, layout, input_gen_fns)"
    ),
    (
        "torch._inductor.select_algorithm:AlgorithmSelectorCache.make_benchmark_fn"
        "(choices, input_nodes, layout, input_gen_fns)"
    ),
    "torch._inductor.select_algorithm:AlgorithmSelectorCache.make_precompile_fn(self, choices)",
    "torch._inductor.select_algorithm:AlgorithmSelectorCache._is_extern(choice)",
    "torch._inductor.select_algorithm:DataProcessorChoiceCallerWrapper",
    "torch._inductor.select_algorithm:ExternKernelCaller",
    "torch._inductor.select_algorithm:ExternKernelChoice",
    "torch._inductor.select_algorithm:TritonTemplate.all_templates",
    "torch._inductor.select_algorithm:TritonTemplate",
    "torch._inductor.select_algorithm:TritonTemplateKernel.load_input",
    "torch._inductor.select_algorithm:PRINT_AUTOTUNE",
    "torch._inductor.codegen.subgraph:SubgraphChoiceCaller._compile_for_benchmarking(self)",
    "torch._inductor.codegen.subgraph:SubgraphTemplate",
    "torch._inductor.codegen.cpp:CppScheduling.define_kernel(self, src_code, nodes)",
    (
        "torch._inductor.codegen.triton:TritonScheduling.define_kernel"
        "(self, src_code, node_schedule, kernel)"
    ),
    (
        "torch._inductor.choices:InductorChoices.should_use_persistent_reduction"
        "(features, cooperative_reduction)"
    ),
    "torch._inductor.codecache:PyCodeCache.load(source_code)",
    "torch._inductor.codegen.simd_kernel_features:SIMDKernelFeatures.contains_op(self, op_name)",
    "torch._inductor.codegen.simd_kernel_features:SIMDKernelFeatures.get_reduction_hint(self)",
    "torch._inductor.codegen.simd_kernel_features:SIMDKernelFeatures.scheduler_nodes(self)",
    (
        "torch._inductor.codegen.triton:TritonScheduling.create_kernel_choices"
        "(self, kernel_features, kernel_args, kernel_kwargs)"
    ),
    (
        "torch._inductor.codegen.triton:TritonScheduling.codegen_node_schedule_with_kernel"
        "(self, node_schedule, kernel)"
    ),
    "torch._inductor.config:benchmark_kernel",
    "torch._inductor.config:triton.multi_kernel",
    "torch._inductor.loop_body:LoopBody.debug_str(self)",
    "torch._inductor.metrics:generated_kernel_count",
    "torch._inductor.runtime.runtime_utils:next_power_of_2",
    (
        "torch._inductor.scheduler:Scheduler.can_buffer_be_removed_through_fusion"
        "(self, name, fused_node_names)"
    ),
    "torch._inductor.utils:Placeholder.KERNEL_NAME",
    "torch._inductor.dependencies:MemoryDep.is_indirect(self)",
    (
        "torch._inductor.scheduler:BaseSchedulerNode.get_read_write_buffer_accesses"
        "(self, include_reads, include_writes)"
    ),
    "torch._inductor.scheduler:NodeUser.get_name(self)",
    "torch._inductor.scheduler:Scheduler.can_fuse(self, node1, node2)",
    "torch._inductor.scheduler:Scheduler.codegen(self)",
    "torch._inductor.scheduler:Scheduler.get_fused_node(self, node)",
    "torch._inductor.scheduler:BaseSchedulerNode.get_template_node(self)",
    "torch._inductor.sizevars:SizeVarAllocator(shape_env)",
    "torch._inductor.sizevars:SizeVarAllocator.statically_known_equals(self, left, right)",
    "torch._inductor.sizevars:SizeVarAllocator.statically_known_leq(self, left, right)",
    (
        "torch._inductor.sizevars:SizeVarAllocator.statically_known_multiple_of"
        "(self, numerator, denominator)"
    ),
    "torch._inductor.utils:can_use_tma",
    "torch._inductor.utils:clone_preserve_strides(x)",
    "torch._inductor.utils:fresh_cache",
    "torch._inductor.virtualized:V",
    "torch._subclasses:FakeTensor",
    "torch._subclasses:FakeTensorMode",
    "torch._subclasses:FakeTensorMode.from_tensor(self, tensor)",
    "torch.compiler.config:_make_closure_patcher",
    "torch.compiler.config:cache_key_tag",
    "torch.autograd.profiler:_set_is_profiler_enabled(enable)",
    "torch.autograd.profiler_legacy:profile",
    "torch.fx.experimental.symbolic_shapes:ShapeEnv.add_backed_var_to_val(self, expr, val)",
    "torch.fx.experimental.symbolic_shapes:ShapeEnv.suppress_guards(self)",
    "torch.fx.experimental.symbolic_shapes:ShapeEnv._default_value_range(self)",
    (
        "torch.fx.experimental.symbolic_shapes:ShapeEnv._get_stack_summary"
        "(self, is_debug, framework_loc)"
    ),
    "torch.fx.experimental.symbolic_shapes:uninteresting_files()",
    "torch.utils:_pytree.tree_flatten(tree)",
    "torch.utils:_pytree.tree_leaves(tree)",
    "torch.utils:_pytree.tree_unflatten(leaves, treespec)",
    "torch.utils._ordered_set:OrderedSet",
    "torch.utils._python_dispatch:TorchDispatchMode",
    "torch.utils._python_dispatch:_disable_current_modes()",
    "torch.utils._sympy.value_ranges:ValueRanges",
    "torch.utils._sympy.value_ranges:bound_sympy",
)
# `explain --assume` alone uses these: they are checked there.
ASSUMED_GPU_INTERNALS: Final = (
    "torch._dynamo.device_interface:CudaInterface.Worker.get_device_properties",
    "torch._dynamo.device_interface:CudaInterface.get_compute_capability",
    "torch._dynamo.device_interface:CudaInterface.is_available",
    "torch._inductor.async_compile:has_triton_package",
    "torch._inductor.codecache:CacheBase.get_system.cache_clear",
    "torch._inductor.codegen.triton:has_triton_package",
    "torch._inductor.compile_fx:_recursive_joint_graph_passes(gm)",
    "torch._inductor.compile_fx:compile_fx_inner(gm, example_inputs)",
    "torch._inductor.config:joint_graph_constant_folding",
    "torch._inductor.fx_passes.joint_graph:constant_fold_uniform_value(gm)",
    "torch._inductor.fx_passes.joint_graph:lazy_init",
    "torch._inductor.fx_passes.pad_mm:has_triton",
    "torch._inductor.fx_passes.post_grad:lazy_init",
    "torch._inductor.kernel.mm_grouped:has_triton",
    "torch._inductor.runtime.hints:DeviceProperties.create",
    "torch._inductor.scheduler:has_triton",
    "torch._inductor.template_heuristics.triton:has_triton_stable_tma_api",
    "torch._inductor.utils:get_device_tflops",
    "torch._inductor.utils:get_gpu_type.cache_clear",
    "torch._inductor.utils:get_gpu_dram_gbps",
    "torch._inductor.utils:get_max_num_sms",
    "torch._inductor.utils:is_big_gpu",
    "torch._subclasses.fake_tensor:FakeTensor",
    "torch._subclasses.fake_tensor:in_kernel_invocation_manager(fake_mode)",
    "torch._subclasses.fake_tensor:init_gpu_context",
    "torch._utils_internal:max_clock_rate",
    "torch.utils._triton:has_triton",
    "torch.utils._triton:triton_backend.cache_clear",
    "torch.utils._triton:triton_hash_with_backend.cache_clear",
    "torch.utils._triton:has_triton_package",
    "torch.utils._triton:has_triton_stable_tma_api",
    "torch.utils._triton:has_triton_tensor_descriptor_host_tma",
    "torch.utils._triton:has_triton_tma",
    "torch.utils._triton:has_triton_tma_device",
)


def check_internals(names: tuple[str, ...] = INTERNALS) -> None:
    """Raise an InductorChangedError where one of *names* is gone or has other parameters."""
    for name in names:
        dotted, opening, parameters = name.partition("(")
        internal = _resolve(dotted)
        if opening:
            _check_parameters(dotted, internal, parameters.rstrip(")"))


def _resolve(dotted: str) -> Any:
    module, _, qualified = dotted.partition(":")
    try:
        internal: Any = importlib.import_module(module)
        for part in qualified.split("."):
            internal = getattr(internal, part)
    except (ImportError, AttributeError) as error:
        raise InductorChangedError(f"{dotted} is gone ({error})") from error
    return internal


def _check_parameters(dotted: str, internal: Any, wanted: str) -> None:
    actual = list(inspect.signature(internal).parameters)
    for position, parameter in enumerate(
        word.strip() for word in wanted.split(",") if word.strip()
    ):
        if position >= len(actual) or actual[position] != parameter:
            raise InductorChangedError(
                f"{dotted} takes ({', '.join(actual)}), "
                f"expected {parameter!r} at position {position}"
            )
