"""A real Kubernetes control plane and nodes on one machine, without root, containers or images: for the demo and the tests."""
