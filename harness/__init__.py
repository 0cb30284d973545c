"""A benchmark and reproducibility harness for distributed training in PyTorch."""

__version__ = "0.1.0"
