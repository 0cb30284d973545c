"""The specification of an experiment: sweep files, axes, cells and trials."""

from harness.core.import_path import bind_workloads

# Modules of this package are the first to import `workloads`.
bind_workloads()
