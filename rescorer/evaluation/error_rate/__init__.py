"""Count word and character errors, against references as people write them."""
