"""`reach demo`: the whole way of a message, in a system of its own, checked line by line."""
