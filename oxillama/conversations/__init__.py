"""Work: from the messages of a chat to the prompt that the model answers, for the library and all faces."""
