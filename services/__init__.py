"""The five services of Agent-Reach, and what they share: `catalog` (what the operator wrote) and `chassis`."""
