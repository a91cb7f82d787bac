"""The cluster as the operator sees it: client, caches, work queue, lease, events, metrics."""
