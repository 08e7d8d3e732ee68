"""What happens to lists before they are scored: checks, joining with the past, cutting into batches.

Lists, canonical words and earlier utterances come in; the same within bounds, and plans of batches, go out.
"""
