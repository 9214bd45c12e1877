"""The context: a flat mapping of facts and settings in force that fix conditions are checked against.

In: nothing. Out: the table of keys. `diagnose.py` fills it from run.json, loader.json,
compile.json and the timeline; a key that could not be measured is absent, never a default value.
Conditions in the catalogue may use only keys listed here (a test holds this).
"""

from __future__ import annotations

__all__ = ["CONTEXT_KEYS"]

CONTEXT_KEYS: dict[str, str] = {
    # machine
    "device.kind": 'str: "cuda", "rocm", "cpu", ...',
    "device.name": "str",
    "device.capability": "float: compute capability, 9.0 for Hopper",
    "device.total_bytes": "int",
    "host.cores": "int: cores this process may use",
    "torch.version": 'str: "2.13", compared part by part (as a float 2.10 would be 2.1)',
    "distributed.world_size": "int",
    "distributed.module": 'str: "ddp", "fsdp", "dp" or "none"',
    # step
    "step.true_ms": "float",
    "step.micro_steps": "float: backward passes per optimizer step",
    "step.varying_shapes": "bool: batch sizes differ between steps",
    "step.idle_share": "float: device idle over the step (GPU runs)",
    # input
    "loader.present": "bool: a training DataLoader was seen",
    "loader.num_workers": "int",
    "loader.pin_memory": "bool",
    "loader.persistent_workers": "bool",
    "loader.prefetch_factor": "int",
    "loader.iterable": "bool",
    "loader.start_method": "str",
    "loader.production_ms": "float: mean cost of producing one batch",
    "loader.needed_workers": "int: workers that keep up with the step without its input wait",
    "loader.epochs": "int: times the training loader was iterated",
    "loader.startup_ms": "float: median time from new iterator to first batch",
    "loader.bursty": "bool: production keeps up on average, yet fetches wait",
    "loader.duplicated": "bool: several workers yielded the same samples",
    "input.wait_share": "float",
    "batch.padding_share": "float: padded elements over all elements of a typical batch",
    # copies and synchronisations
    "copies.pageable_blocking": "bool: host-to-device copies from pageable memory block the host",
    "copies.h2d_ms": "float: host-to-device copy time per step",
    "sync.per_step": "float: synchronising calls per step (CPU runs: aten::_local_scalar_dense)",
    "sync.item_per_step": "float",
    # acceleration state
    "matmul.precision": 'str: "highest", "high", "medium"',
    "cudnn.allow_tf32": "bool",
    "cudnn.benchmark": "bool",
    "cudnn.deterministic": "bool",
    "autocast.dtype": 'str: "none", "bfloat16", "float16"',
    "optimizer.cls": "str",
    "optimizer.flavour": 'str: "fused", "foreach", "for-loop"',
    "optimizer.can_fuse": "bool: Adam, AdamW, SGD or Adagrad as torch ships them",
    "zero_grad.set_to_none": "bool",
    "memory_format": 'str: "channels_last", "contiguous"',
    "allocator.expandable_segments": "bool",
    "allocator.backend": "str",
    "threads.intra_op": "int",
    "threads.oversubscribed": "bool",
    "malloc.library": 'str: "glibc", "jemalloc", "tcmalloc"',
    # compile
    "compile.used": "bool",
    "compile.mode": "str",
    "compile.breaks": "int",
    "compile.break_kinds": 'list[str]: among "item", "print", "branch", "unsupported", "disabled"',
    "compile.recompiles": "int: recompilations in steady state",
    "compile.cudagraph_skips": "int",
    "compile.dynamic_sizes": "bool: a recompile names a size that changed",
    "compile.torchscript": "bool",
    # kernels, shares of the true step time
    "kernels.matmul_fp32_share": "float: matmul kernels computing in full fp32",
    "kernels.conv_share": "float",
    "kernels.bf16_share": "float: matmul and conv kernels in bf16 or fp16",
    "kernels.attention_unfused_share": "float",
    "kernels.norm_share": "float: normalisation, rotary, loss kernels",
    "kernels.memory_bound_share": "float",
    "kernels.layout_share": "float: layout-change kernels around convolutions",
    "kernels.zero_grad_share": "float",
    "kernels.custom_share": "float: kernels of the user's own extensions",
    "optimizer.share": "float: device (CPU: operator) time of the optimizer over the step",
    "optimizer.launches": "float: launches (CPU: operators) inside the optimizer per step",
    "launches.per_step": "float: launches (CPU: operators) per step",
    "work.static_shapes": "bool: every traced step launches the same kernels",
    # allocator
    "allocator.retries_per_step": "float",
    "allocator.device_allocs_per_step": "float: cudaMalloc / cuMemMap calls",
    "allocator.device_frees_per_step": "float",
    "allocator.reserved_over_allocated": "float: peak reserved over peak allocated",
    "allocator.headroom_share": "float: free share of device memory at the peak",
    "allocator.empty_cache_per_step": "float",
    # memory, from the allocator's history (shares are of the peak)
    "memory.peak_share": "float: most that was reserved or live over what the process may use",
    "memory.headroom": "float: times that the batch would fit",
    "memory.parameters_share": "float",
    "memory.gradients_share": "float",
    "memory.optimizer_share": "float",
    "memory.activations_share": "float",
    "memory.state_share": "float: parameters, gradients and optimizer state together",
    "memory.loss_share": "float: logits and what a cross-entropy makes of them",
    "memory.gradients_in_forward_share": "float: gradients of the step before, alive in forward",
    "memory.leak_bytes_per_step": "int",
    "memory.checkpointed": "bool: torch.utils.checkpoint was seen",
    "memory.failed": "bool: an allocation failed",
    "memory.resident_growth": "float: bytes per step by which resident memory grows",
    "memory.faults_per_step": "float: minor page faults per step (CPU runs)",
    "memory.system_share": "float: system CPU time over step time (CPU runs)",
    # host
    "gc.ms_per_step": "float",
    "host.named_share": "float: checkpoint, logging, validation work",
    # communication
    "comm.exposed_share": "float",
    "comm.collectives_per_micro_step": "float",
    "comm.rank_skew_ms": "float",
}
