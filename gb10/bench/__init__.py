"""Request records, what they add up to, and what that decides. Pure: no engine, no network, no printing."""
