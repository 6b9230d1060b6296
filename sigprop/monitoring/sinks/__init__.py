"""Where a run is written to: `trackers` through the tracker's own API; `base` has the registry."""
