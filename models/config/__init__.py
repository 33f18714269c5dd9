"""Settings: where they come from, what they mean, and which upstream serves a model."""
