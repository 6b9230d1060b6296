"""Rules: one file per family, each binding torch functions to ops by name; read when a rule is first asked for."""
