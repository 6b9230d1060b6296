"""Where a run is written to: one thin file per tracker, each through the tracker's own API; `base` has the registry."""
