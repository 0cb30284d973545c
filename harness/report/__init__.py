"""A sweep as one HTML file that needs nothing else: no network, no script, no MLflow."""
