"""Programs that `make` runs by themselves, not tests: benchmarks, faults, mutants, what only a GPU shows."""
