"""The contract of EngineFleet: resources, documents in the store, job requests and reports, keys, failures.

Every other package imports this one; it does no I/O. Importing the package itself pulls in nothing, so that the node agent can use
`enginefleet_api.identity` without pydantic.
"""
