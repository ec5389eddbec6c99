"""What holds for all tests."""

import signal

# Started in the background, a process may inherit that Ctrl-C is ignored, and so would the command lines the
# tests start and interrupt. With a handler here they get the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
