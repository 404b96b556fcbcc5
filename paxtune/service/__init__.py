"""The service that keeps studies for many workers, and the channel to it.

It suggests nothing and runs nothing that it is sent: it imports neither JAX nor users' code.
"""
