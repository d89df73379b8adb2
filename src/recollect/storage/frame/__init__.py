"""Items in a pandas DataFrame."""
