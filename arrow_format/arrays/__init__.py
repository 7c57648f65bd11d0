"""Arrow arrays and NumPy: sizes, slices, conversions, gathering. Knows nothing of shuffles."""
