"""Programs that use the library as any user would: command line, server, batch, Ray, files, evaluation."""
