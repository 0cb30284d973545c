"""What a user asks for: sweep files, axes, cells and trials."""
