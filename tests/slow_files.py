"""The files that ``make quick`` leaves out."""

#: files whose tests take more than 5 s together, or compare recorded traces with what is known of them
SLOW = {
    "test_notebook_frame.py", "test_notebooks.py",
    "analyses/test_execution_trace_nodes.py", "batch/test_cluster.py", "batch/test_going_on.py",
    "batch/test_job_tracks.py", "batch/test_merging.py", "cli/test_diff.py", "cli/test_odd_inputs.py",
    "cli/test_open.py", "cli/test_processes.py", "cli/test_query.py", "cli/test_remote.py",
<<<<<<< HEAD
    "comparison/test_diff_kinds.py", "comparison/test_diff_truth.py", "comparison/test_gate_truth.py",
    "derived/test_arg_columns.py", "derived/test_critical_graph.py", "diagnosis/test_rules.py",
    "history/test_changes.py", "job/test_buckets.py", "job/test_dimensions.py", "job/test_path.py",
    "job/test_path_truth.py", "job/test_pipeline_bubbles.py", "job/test_step_parts.py", "job/test_truth.py",
    "kernels/test_native.py", "readers/test_event_scanner.py", "readers/test_perfetto_args.py",
    "readers/test_perfetto_damage.py", "readers/test_perfetto_round_trip.py", "test_browser.py",
    "test_diagnosis_recorded.py",
    "cli/test_page_commands.py",
    "test_costs.py",
    "test_fuzz.py", "test_reference_figures.py", "test_roofline_metamorphic.py", "test_simulator_causes.py",
    "test_torch.py", "writers/test_adding.py", "writers/test_perfetto_annotations.py",
    "writers/test_perfetto_encoding.py", "writers/test_perfetto_lanes.py", "writers/test_perfetto_several.py",
    "writers/test_perfetto_source.py", "writers/test_perfetto_time.py", "writers/test_render.py",
    "job/test_verdict.py",
=======
    "comparison/test_diff_truth.py", "comparison/test_gate_truth.py", "derived/test_arg_columns.py",
    "derived/test_critical_graph.py", "job/test_buckets.py", "job/test_dimensions.py", "job/test_pipeline_bubbles.py",
    "job/test_path.py", "job/test_path_truth.py", "history/test_changes.py", "job/test_truth.py",
    "diagnosis/test_rules.py", "kernels/test_native.py", "readers/test_event_scanner.py",
    "readers/test_perfetto_args.py",
    "readers/test_perfetto_damage.py", "readers/test_perfetto_round_trip.py", "test_browser.py", "test_fuzz.py",
    "test_costs.py", "report/test_page_in_browser.py", "report/test_report.py", "test_reference_figures.py", "test_simulator_causes.py", "test_torch.py", "writers/test_adding.py",
    "writers/test_perfetto_annotations.py", "writers/test_perfetto_encoding.py", "writers/test_perfetto_lanes.py",
    "writers/test_perfetto_several.py", "writers/test_perfetto_source.py", "writers/test_perfetto_time.py",
    "writers/test_render.py",
>>>>>>> 0efce63 (Report: in the browser, the build, docs)
}  # fmt: skip
