"""Everything between characters and tokens: tokenizer, grammars, chat templates, tool calls."""
