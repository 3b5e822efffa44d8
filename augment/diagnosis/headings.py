"""What findings are called in a few words, where their sentence stands elsewhere on the page."""

from __future__ import annotations

#: by the name of the rule
HEADINGS = {
    "allocator_calls": "Memory is asked of the driver",
    "clock_drop": "Clocks drop",
    "cold_start": "Cold start",
    "data_loading": "Waiting for batches",
    "disturbed_device": "Kernels take many times as long at times",
    "eager_decodes": "Decodes without graphs",
    "elementwise_chains": "Chains of elementwise kernels",
    "exposed_communication": "Exposed communication",
    "exposed_copies": "Exposed copies",
    "garbage_collection": "Garbage collection",
    "graph_breaks": "Graph breaks",
    "graph_capture": "Capturing graphs",
    "graph_padding": "Padded decodes",
    "host_gaps": "Stalls of the host",
    "late_gathers": "Late gathers of parameters",
    "launch_bound": "The host launches too late",
    "long_calls": "Single long runtime calls",
    "low_roofline": "Far below the roofline",
    "matrix_units": "No matrix units",
    "memory_capacity": "Memory of the device",
    "network_setup": "Network setup",
    "out_of_memory": "Out of memory",
    "pageable_copies": "Copies of pageable memory",
    "partial_recording": "The recording is not whole",
    "pipeline_bubble": "Pipeline bubble",
    "prefill_stalls": "Prompts hold up decodes",
    "profiler_overhead": "The profiler's own time",
    "recompilation": "Recompilation",
    "rejected_drafts": "Rejected drafts",
    "slow_start": "Slow first step",
    "small_collectives": "Many small collectives",
    "small_grids": "Small grids",
    "starved_host": "The host gets no CPU",
    "step_gaps": "Gaps between steps",
    "step_outliers": "Outlying steps",
    "straggling_rank": "Late rank",
    "stream_contention": "Streams slow each other down",
    "synchronizing_calls": "The host waits for the device",
    "unaligned_shapes": "Unaligned shapes",
    "unfused_optimizer": "Unfused optimizer",
    "wide_norms": "Norms in FP32",
    "written_attention": "Attention without a fused kernel",
}


def heading(rule: str) -> str:
    """``Waiting for batches``; the name itself of a rule of another version."""
    return HEADINGS.get(rule) or rule.replace("_", " ").capitalize()
