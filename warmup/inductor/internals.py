"""`check_internals`: every internal of torch that warmup uses, checked before it is patched.

If an upgrade of torch moves or changes an internal, this check fails with its name.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any, Final

from warmup.core.errors import InductorChangedError


def _listed(text: str) -> tuple[str, ...]:
    """Return ``module:name``, with parameters relied upon, for each name behind its module."""
    names: list[str] = []
    module = ""
    for line in text.splitlines():
        words = line.split()
        if words and not line.startswith(" "):
            module = words.pop(0)
        names += (f"{module}:{name}" for name in words)
    return tuple(names)


WORKER_INTERNALS: Final = _listed("""
torch._inductor.async_compile AsyncCompile.use_process_pool() AsyncCompile.wait_pool_ready(timeout)
    maybe_warm_pool()
torch._inductor.runtime.compile_tasks _set_triton_ptxas_path()
""")
ASSEMBLER_INTERNALS: Final = _listed("""
torch.utils._triton triton_hash_with_backend.cache_clear
triton.backends.nvidia.compiler CUDABackend.hash.cache_clear get_ptxas_version.cache_clear
""")
DEFERRED_KERNEL_INTERNALS: Final = _listed("""
torch._dynamo.convert_frame compile_lock
torch._guards TracingContext.report_output_strides() TracingContext.try_get() tracing(context)
torch._inductor.async_compile AsyncCompile.use_process_pool() AsyncCompile.wait(self,scope)
torch._inductor.codecache CodeCacheFuture FxGraphCache._filter_backed_symints(inputs)
    FxGraphCache._get_shape_env() FxGraphCache._save_graph(key,compiled_graph,example_inputs)
torch._inductor.output_code CompiledFxGraph.__call__(self,inputs)
    CompiledFxGraph.prepare_for_serialization(self)
    CompiledFxGraph.set_triton_bundle(self,triton_bundle)
torch._inductor.triton_bundler TritonBundler.begin_compile() TritonBundler.collect()
    TritonBundler.end_compile()
torch.fx.experimental.symbolic_shapes ShapeEnv.get_pruned_guards(self,symints)
    ShapeEnv.produce_guards_expression(self,placeholders) ShapeEnv.suppress_guards(self)
""")
FOLDING_INTERNALS: Final = _listed("""
torch._inductor.fx_passes.post_grad is_valid_addmm_fusion(match) should_prefer_unfused_addmm(match)
""")
INTERNALS: Final = (
    *WORKER_INTERNALS,
    *DEFERRED_KERNEL_INTERNALS,
    *FOLDING_INTERNALS,
    *_listed("""
torch._C._aoti alloc_tensors_by_stealing_from_void_ptrs unsafe_alloc_void_ptrs_from_tensors
torch._C._dynamo.eval_frame _debug_get_cache_entry_list reset_code
torch._C._dynamo.guards RootGuardManager.add_epilogue_lambda_guard
torch._dynamo mark_dynamic(t,index,hint_override,min,max) mark_static_address(t,guard)
    maybe_mark_dynamic(t,index) reset()
torch._dynamo.cache_size CacheSizeRelevantForFrame
torch._dynamo.config accumulated_recompile_limit recompile_limit
torch._dynamo.convert_frame ConvertFrame.__call__(self,frame) _compile(code) output_codes.seen_ids
torch._dynamo.device_interface DeviceGuard get_interface_for_device(device)
torch._dynamo.eval_frame OptimizedModule _debug_get_cache_entry_list
torch._dynamo.exc Unsupported
torch._dynamo.guards DeletedGuardManagerWrapper(reason)
torch._dynamo.source GlobalStateSource.make_guard(self,fn)
torch._dynamo.types ConvertFrameReturn.guarded_code
torch._dynamo.utils ChromiumEventLogger.log_event_end(self,event_name)
    ChromiumEventLogger.log_event_start(self,event_name) CompilationMetrics.fail_reason
    CompilationMetrics.recompile_reason counters get_compilation_metrics() graph_break_reasons
torch._functorch.config bundled_autograd_cache enable_autograd_cache
    force_non_lazy_backward_lowering
torch._guards CompileContext.current_compile_id() TracingContext.extract_stack()
    TracingContext.get()
torch._inductor.async_compile AsyncCompile.pool() AsyncCompile.process_pool()
    AsyncCompile.triton(self,kernel_name,source_code) get_compile_threads() size_hints_regex
torch._inductor.autotune_process
    ExternKernelBenchmarkRequest(kernel_name,input_tensor_meta,output_tensor_meta,extra_args,callable_path,kwargs,has_out_variant)
    ExternKernelGPUBenchmarkRequest.make_run_fn TensorMeta(device,dtype,sizes,strides,offset)
    TritonBenchmarkRequest(kernel_name,input_tensor_meta,output_tensor_meta,extra_args,module_path,module_cache_key,num_stages,num_warps,num_consumer_groups,num_buffers_warp_spec,matrix_instr_nonkdim,waves_per_eu,kpack,workspace_size,workspace_zero_fill)
    TritonGPUBenchmarkRequest.make_run_fn
torch._inductor.choices
    InductorChoices._finalize_template_configs(self,template_choices,kernel_inputs,templates,op_name,kwarg_overrides)
    InductorChoices.can_fuse(scheduler,node1,node2,shared_data_score)
    InductorChoices.get_ktc(self,kernel_inputs,template,op_name,kwarg_overrides)
    InductorChoices.should_use_persistent_reduction(features,cooperative_reduction)
    get_template_heuristic(template_name,device_type,op_name)
torch._inductor.codecache CppCodeCache.load FxGraphCache._lookup_graph(key)
    FxGraphCache.cache_hit_post_compile(graph,cache_info,constants)
    PersistentCache.lookup(self,choices,op,inputs,benchmark) PyCodeCache.load(source_code)
    PyCodeCache.load_by_key_path(key,path) PyCodeCache.modules_no_attr
torch._inductor.codegen.common KernelTemplate._template_from_string(source)
torch._inductor.codegen.cpp CppScheduling.define_kernel(self,src_code,nodes)
    CppKernel.decide_parallel_depth(self,max_parallel_depth,threads)
torch._inductor.codegen.cpp_gemm_template CppGemmTemplate.add_choices(choices,layout,input_nodes)
torch._inductor.codegen.cpp_template_kernel CppTemplateCaller
    CppTemplateKernel.def_kernel(self,inputs,outputs) CppTemplateKernel.render(self,template)
    parse_expr_with_index_symbols(expr)
torch._inductor.codegen.simd_kernel_features SIMDKernelFeatures.contains_op(self,op_name)
    SIMDKernelFeatures.get_reduction_hint(self) SIMDKernelFeatures.scheduler_nodes(self)
torch._inductor.codegen.subgraph SubgraphChoiceCaller._compile_for_benchmarking(self)
    SubgraphTemplate
torch._inductor.codegen.triton TritonScheduling.codegen_node(self,node)
    TritonScheduling.codegen_node_schedule(self,kernel_features)
    TritonScheduling.codegen_node_schedule_with_kernel(self,node_schedule,kernel)
    TritonScheduling.create_kernel_choices(self,kernel_features,kernel_args,kernel_kwargs)
    TritonScheduling.define_kernel(self,src_code,node_schedule,kernel)
    TritonScheduling.get_tiling_and_scores(node_schedule,numel,reduction_numel,coalesce_analysis)
torch._inductor.compile_fx compile_fx(model_,example_inputs_,inner_compile,config_patches)
    fx_codegen_and_compile
torch._inductor.config _config autotune_lookup_table benchmark_kernel cpp.enable_kernel_profile
    freezing max_autotune max_autotune_gemm triton.multi_kernel triton.num_decompose_k_splits
torch._inductor.cpp_builder get_cpp_compiler()
torch._inductor.cpu_vec_isa supported_vec_isa_list valid_vec_isa_list() x86_isa_checker()
torch._inductor.dependencies MemoryDep.is_indirect(self)
torch._inductor.exc InvalidCxxCompiler
torch._inductor.freezing freeze(dynamo_gm,aot_autograd_gm,example_inputs)
torch._inductor.fx_passes.pad_mm _should_pad(match,mat1,mat2,op,input) get_alignment_size(x)
    get_cached_base_mm_benchmark_time(key) get_cached_should_pad(key) get_do_bench()
    is_mm_compute_bound(M,K,N,dtype) is_padded_faster(key,ori_time,pad_time)
    should_exclude_padding_time(match,arg_name)
torch._inductor.graph GraphLowering.__init__(self,gm) GraphLowering.codegen(self)
    GraphLowering.compile_to_module(self) GraphLowering.run(self) GraphLowering.run_node(self,n)
    GraphLowering.try_get_buffer(self,buffer_name)
torch._inductor.ir Buffer(name,layout) ComputedBuffer
    FlexibleLayout.get_fixed_layout_without_freezing(self) MutableBox MutableBox.realize(self)
    Pointwise.inner_fn_str(self)
    Reduction.num_splits(device,dst_dtype,src_dtype,inner_fn,ranges,reduction_ranges,reduction_type,reduction_numel,input_node)
    TensorBox
torch._inductor.kernel.bmm bmm_template.uid
torch._inductor.kernel.conv conv2d_template conv3d_template
torch._inductor.kernel.mm decompose_k_subgraph_template.uid
    get_scaling_options(mat_a,mat_b,scale_a_size,scale_b_size) mm_template.uid
    persistent_tma_mm_template.uid scaled_mm_device_tma_epilogue_scaling_template.uid
torch._inductor.kernel.mm_common mm_grid
torch._inductor.kernel.mm_grouped triton_grouped_mm_template
torch._inductor.kernel_inputs MMKernelInputs.mat1mat2 MMKernelInputs.mnk_symbolic
torch._inductor.kernel_template_choice
    KernelTemplateChoice(template,params,extra_kwargs,layout,inputs)
torch._inductor.loop_body LoopBody.debug_str(self)
torch._inductor.metrics generated_kernel_count
torch._inductor.output_code CompiledFxGraph.post_compile(self,example_inputs,constants)
torch._inductor.pattern_matcher Match.output_node(self)
torch._inductor.runtime.benchmarking Benchmarker
torch._inductor.runtime.cache_dir_utils cache_dir() triton_cache_dir(device)
torch._inductor.runtime.compile_tasks _reload_python_module(key,path,set_sys_modules)
torch._inductor.runtime.coordinate_descent_tuner CoordescTuner.autotune(self,func,baseline_config)
    CoordescTuner.lookup_in_cache(self,config)
torch._inductor.runtime.hints HeuristicType.USER_AUTOTUNE ReductionHint.OUTER_TINY TRITON_MAX_BLOCK
torch._inductor.runtime.runtime_utils next_power_of_2 triton_config_to_hashable(cfg)
torch._inductor.runtime.triton_heuristics CachingAutotuner._precompile_config(self,cfg)
    CachingAutotuner.autotune_to_one_config(self,args) CachingAutotuner.bench(self,launcher)
    CachingAutotuner.coordinate_descent_tuning(self,launcher)
    CachingAutotuner.precompile(self,warm_cache_only,reload_kernel,static_triton_bundle_key)
    CachingAutotuner.reset_to_zero_args(self,args,kwargs) CachingAutotuner.run(self,args)
    NoTritonConfigsError config_from_dict(config)
    generate_lookup_hash_from_source_code(size_hints_str,source_code)
    persistent_reduction(size_hints,reduction_hint,triton_meta,filename,inductor_meta,return_configs)
    pointwise(size_hints,triton_meta,tile_hint,filename,min_elem_per_thread,inductor_meta,return_configs)
    reduction(size_hints,reduction_hint,triton_meta,filename,inductor_meta,return_configs)
torch._inductor.scheduler
    BaseSchedulerNode.get_read_write_buffer_accesses(self,include_reads,include_writes)
    BaseSchedulerNode.get_buffer_names(self) BaseSchedulerNode.get_operation_names(self)
    BaseSchedulerNode.get_template_node(self) FusedSchedulerNode NodeUser.get_name(self)
    Scheduler.can_buffer_be_removed_through_fusion(self,name,fused_node_names)
    Scheduler.can_fuse(self,node1,node2) Scheduler.codegen(self) Scheduler.get_fused_node(self,node)
    SchedulerNode.is_reduction(self)
torch._inductor.select_algorithm
    AlgorithmSelectorCache.__call__(self,name,choices,input_nodes,layout)
    AlgorithmSelectorCache._is_extern(choice) AlgorithmSelectorCache.benchmark_in_sub_process
    AlgorithmSelectorCache.get_inputs(choices,input_nodes,layout,input_gen_fns)
    AlgorithmSelectorCache.make_benchmark_fn(choices,input_nodes,layout,input_gen_fns)
    AlgorithmSelectorCache.make_precompile_fn(self,choices) DataProcessorChoiceCallerWrapper
    ExternKernelCaller ExternKernelCaller.to_callable(self) ExternKernelChoice PRINT_AUTOTUNE
    TritonTemplate TritonTemplate.all_templates TritonTemplateCaller TritonTemplateKernel.load_input
    TritonTemplateKernel.store_output
torch._inductor.sizevars SizeVarAllocator(shape_env)
    SizeVarAllocator.statically_known_equals(self,left,right)
    SizeVarAllocator.statically_known_leq(self,left,right)
    SizeVarAllocator.statically_known_multiple_of(self,numerator,denominator)
torch._inductor.utils Placeholder.KERNEL_NAME can_use_tma clone_preserve_strides(x) fresh_cache
torch._inductor.virtualized V threadlocal
torch._subclasses FakeTensor FakeTensorMode FakeTensorMode.from_tensor(self,tensor)
torch.autograd.profiler _set_is_profiler_enabled(enable)
torch.autograd.profiler_legacy profile
torch.compiler.config _make_closure_patcher cache_key_tag
torch.fx.experimental.symbolic_shapes ShapeEnv._default_value_range(self)
    ShapeEnv._get_stack_summary(self,is_debug,framework_loc) ShapeEnv.suppress_guards(self)
    uninteresting_files()
torch.utils _pytree.tree_flatten(tree) _pytree.tree_leaves(tree) _pytree.tree_map(func,tree)
    _pytree.tree_map_only(type_or_types_or_pred,func,tree) _pytree.tree_unflatten(leaves,treespec)
torch.utils._ordered_set OrderedSet
torch.utils._python_dispatch TorchDispatchMode _disable_current_modes()
torch.utils._sympy.value_ranges ValueRanges bound_sympy
"""),
)
# `explain --assume` alone uses these: they are checked there.
ASSUMED_GPU_INTERNALS: Final = _listed("""
torch._dynamo.device_interface CudaInterface.Worker.get_device_properties
    CudaInterface.get_compute_capability CudaInterface.is_available
torch._inductor.async_compile has_triton_package
torch._inductor.codecache CacheBase.get_system.cache_clear
torch._inductor.codegen.triton has_triton_package
torch._inductor.compile_fx _recursive_joint_graph_passes(gm) compile_fx_inner(gm,example_inputs)
torch._inductor.config joint_graph_constant_folding
torch._inductor.fx_passes.joint_graph constant_fold_uniform_value(gm) lazy_init
torch._inductor.fx_passes.pad_mm has_triton
torch._inductor.fx_passes.post_grad lazy_init
torch._inductor.kernel.mm_grouped has_triton
torch._inductor.runtime.hints DeviceProperties.create
torch._inductor.scheduler has_triton
torch._inductor.template_heuristics.triton has_triton_stable_tma_api
torch._inductor.utils get_device_tflops get_gpu_dram_gbps get_gpu_type.cache_clear get_max_num_sms
    is_big_gpu
torch._subclasses.fake_tensor FakeTensor in_kernel_invocation_manager(fake_mode) init_gpu_context
torch._utils_internal max_clock_rate
torch.utils._triton has_triton has_triton_package has_triton_stable_tma_api
    has_triton_tensor_descriptor_host_tma has_triton_tma has_triton_tma_device
    triton_backend.cache_clear triton_hash_with_backend.cache_clear
""")


def check_internals(names: tuple[str, ...] = INTERNALS) -> None:
    """Raise an InductorChangedError where one of *names* is gone or has other parameters."""
    for name in names:
        dotted, opening, wanted = name.partition("(")
        internal = _resolve(dotted)
        if opening and (
            fault := parameter_fault([*inspect.signature(internal).parameters], wanted)
        ):
            raise InductorChangedError(f"{dotted} {fault}")


def _resolve(dotted: str) -> Any:
    module, _, qualified = dotted.partition(":")
    try:
        internal: Any = importlib.import_module(module)
        for part in qualified.split("."):
            internal = getattr(internal, part)
    except (ImportError, AttributeError) as error:
        raise InductorChangedError(f"{dotted} is gone ({error})") from error
    return internal


def parameter_fault(actual: Sequence[str], wanted: str) -> str | None:
    """Return what is wrong with *actual* where *wanted*, ``self,key)``, is not its beginning."""
    names = [word.strip() for word in wanted.rstrip(")").split(",") if word.strip()]
    for position, name in enumerate(names):
        if position >= len(actual) or actual[position] != name:
            return f"takes ({', '.join(actual)}), expected {name!r} at position {position}"
    return None
