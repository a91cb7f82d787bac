"""The EngineFleet operator: planning and render are pure, kube does the I/O, app is the thin kopf shell."""
