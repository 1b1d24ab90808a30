"""Long work: parts, where they are stored, who makes them, and how far they are."""
