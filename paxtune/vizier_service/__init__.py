"""Vizier's own gRPC API over the database of a service, for clients that do not know paxtune.

Suggestions for plain Vizier search spaces come from `paxtune.algorithms`. Nothing here runs users'
code, or knows leases and connections: those are in `paxtune.service`.
"""
