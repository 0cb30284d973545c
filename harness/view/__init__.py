"""Shows results: in the terminal, as an HTML page, in Markdown and as plots; a file for each subject.

Nothing is estimated, judged or started here. `format` turns numbers, verdicts and settings into text
for all renderers, MLflow included; `table` is the table that they draw, and `console` the terminal;
`findings` puts a sweep's results into sentences; `chart` gives all plots one look; `html` is the report.
"""
