"""Where a run is written to: `trackers` through the tracker's own API, `jsonl` to a file; `base` has the registry."""
