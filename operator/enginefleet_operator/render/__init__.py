"""Manifests as pure functions of plan actions and the snapshot: Jobs, DaemonSets, EngineBuilds, Services."""
