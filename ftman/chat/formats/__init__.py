"""Chat formats: how each family of models writes reasoning and tool calls, one file per format."""
