"""Everything that runs inside Jobs and pods: prepare, build, judge, probe, fetch, serve."""
