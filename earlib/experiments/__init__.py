"""Settings, runs, comparisons and measures."""
