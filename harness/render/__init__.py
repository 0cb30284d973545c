"""Shows what `analysis` has found: in the terminal and as an HTML page."""
