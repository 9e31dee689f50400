"""Failover between machines: hosts whose links are cut, slowed or made lossy, and who holds what
then. See `proof`.
"""
