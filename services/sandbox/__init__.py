"""The room where code of agents runs: scrubbed, limited, and ended together with everything it started.

It knows nothing of messages and touches no user data. A run has three parties: the service, a small launcher
process of its own (`launcher.py`) that guards the tree of processes, and the code. What keeps them apart today is
what one user id allows: an empty environment, no inherited descriptors, resource limits, no capabilities, no new
privileges. Code can still read what the service's user can read on disk, and use the network.
"""
