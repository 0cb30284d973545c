"""Shows results and progress in the terminal."""
