"""Commands of `harness` by what they are about; `harness.cli` puts them together."""
