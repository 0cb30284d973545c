"""The Python interface, for notebooks and scripts: what the names of `import harness` stand for.

`data`      recorded sweeps as data frames (`load`).
`planning`  what a sweep will run (`plan`).
`running`   running it on this machine (`run`).
`comparing` verdicts on results (`compare`).
`tables`    the table of trials as Arrow and Parquet.

The command line uses the same functions. They raise HarnessError and print nothing, except `run`
with its progress.
"""
