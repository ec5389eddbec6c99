"""Recurrent mixers: convolutions, scans, RWKV, the delta rule."""
