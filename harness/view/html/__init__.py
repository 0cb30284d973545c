"""Renders a sweep as one HTML file without a script: it needs no network and no MLflow."""
