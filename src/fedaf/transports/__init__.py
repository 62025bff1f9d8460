"""Transports: in this process (``local``) or over a network (``flower``)."""
