"""One file per finding; each registers one function from a subject to what it finds."""
