"""How messages leave: one adapter per provider behind one port."""
