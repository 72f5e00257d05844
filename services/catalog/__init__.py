"""What the operator wrote: scenes, policies, channels and templates' heads; loaded, checked, hot-reloaded.

A `Catalog` is an immutable snapshot whose version is the hash of its content. Intake validates against it, policy
judges by it, the dispatcher renders by it; each process holds one in a `CatalogHolder`.
"""
