"""Engines under load: N users, each with one request in flight, served by continuous batching."""
