"""Trials in MLPerf's log format, and MLCommons' checker of such logs."""
