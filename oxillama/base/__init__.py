"""Tables and small tools that every other folder uses: options, formats, targets, events, files, locks."""
