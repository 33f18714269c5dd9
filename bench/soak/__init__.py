"""`./dev bench soak`: hours of mixed load, and whether memory or tables grow."""
