"""Makes the language models that ``rescorer`` serves, from text to a verified bundle."""
