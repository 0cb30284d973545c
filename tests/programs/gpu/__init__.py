"""What can only be shown on a GPU, in one command: `python -m tests.programs.gpu --output FOLDER`.

Starting needs the standard library alone, each part is a process of its own with a time limit, and
the same code runs on a CPU, so that a machine with a GPU is no first try.
"""
