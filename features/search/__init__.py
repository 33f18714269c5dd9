"""Search documents: what operators find responses by."""
