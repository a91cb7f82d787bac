"""Decisions as pure functions: a snapshot and the time go in, a plan comes out. No client, clock, randomness or environment."""
