"""The two formats of decisions on the wire: System One's and OpenAI's, as requests and as answers."""
