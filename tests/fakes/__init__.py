"""Stand-ins for tests: real programs and clocks that can be told how to misbehave."""
