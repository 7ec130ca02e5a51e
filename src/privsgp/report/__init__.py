"""Reports of runs, on pages and on the terminal."""
