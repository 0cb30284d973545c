"""Fuzzers and properties: inputs that hypothesis generates, for everything that is read."""
