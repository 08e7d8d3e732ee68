"""Search for the weights with the fewest errors, and compare systems on the same lists."""
