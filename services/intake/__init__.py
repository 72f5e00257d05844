"""Where agents come in: authenticates, validates, deduplicates, stores, answers; then pumps what is stored onwards.

Never judges, and never calls a provider.
"""
