"""What a request may contain: checks that also describe what they accept."""
