"""Shows what `analysis` has computed: in the terminal and as an HTML page.

Nothing is estimated or judged here. `format` turns numbers, verdicts and settings into text for all
renderers, MLflow included; `findings` puts a sweep's results into sentences; `chart` gives all
plots one look.
"""
