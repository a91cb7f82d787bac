"""The prepare Job: fetch, preflight, quantize, baseline, store."""
