"""Findings, those of one idea in one file; each registers one function from a subject to what it finds."""
