"""The node agent: says what its node is (NodeFingerprint) and keeps the node's engine cache in bounds. Standard library only."""
