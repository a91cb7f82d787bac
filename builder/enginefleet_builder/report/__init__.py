"""What a person reads about one engine: from records in the store to a page and its JSON."""
