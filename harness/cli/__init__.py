"""The command line, and the pytest plugin: everything that a user types."""
