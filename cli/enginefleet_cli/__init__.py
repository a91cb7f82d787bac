"""`kubectl enginefleet`: where a fleet stands and why, what a change would do, and the manual acts. Reads and writes with the user's rights alone."""
