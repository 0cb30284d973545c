"""Runs sweeps as Slurm jobs: packs, submits, leads them on their nodes, and watches them from
outside.
"""
