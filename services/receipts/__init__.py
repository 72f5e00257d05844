"""The providers' door: verifies what they tell about messages, stores it as it is, then has the dispatcher apply it.

A fact is stored before anybody acts on it, and never changed afterwards; what a provider says twice is stored once.
"""
