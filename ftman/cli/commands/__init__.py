"""One file per verb; each has `run(args, session) -> exit code`."""
