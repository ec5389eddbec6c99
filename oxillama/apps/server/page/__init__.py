"""The page for people: a chat in the browser, of files that the package holds."""
