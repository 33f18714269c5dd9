"""What a worker claims: free slots, the line, the sweep for orphans, and suspects in quarantine."""
