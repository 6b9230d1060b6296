"""Side-by-side timings, as ratios measured in one process; never asserted in tests."""
