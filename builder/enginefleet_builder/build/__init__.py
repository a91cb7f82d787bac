"""The build Job: claim or adopt, build, publish, read back, judge, benchmark, verdict last."""
