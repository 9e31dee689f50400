"""The package in a simulated world: time, scheduling, the network, the broker and every fault come
from one seed. See README.md.
"""
