"""Items in the memory of this process."""
