"""OpenAI's responses API. Read route.py first; request.py and items.py ask, writer.py answers."""
