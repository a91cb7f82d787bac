"""Scripts of the developer's house: setting up, locking, images for the local cluster. Not part of the distribution."""
