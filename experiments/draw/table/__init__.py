"""A filled table: in words, as Markdown, LaTeX and CSV, and on the terminal."""
