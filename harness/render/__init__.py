"""Shows results: in the terminal, as an HTML page and in Markdown.

Nothing is estimated, judged or started here. `format` turns numbers, verdicts and settings into text
for all renderers, MLflow included; `table` is the table that they draw; `findings` puts a sweep's
results into sentences; `chart` gives all plots one look.
"""
