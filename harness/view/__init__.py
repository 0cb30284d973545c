"""Shows results: in the terminal, as an HTML page, in Markdown and as plots; a file for each subject.

Nothing is estimated, judged or started here. `value` turns numbers, verdicts and settings into text
for all renderers, MLflow included; `view` has the tables that they draw, `console` draws them in the
terminal, and `report` as an HTML page with the curves of `plots`; `findings` puts a sweep's results
into sentences.
"""
