"""The command line: one thin file per command, loaded only when it is called."""
