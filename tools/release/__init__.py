"""Programs for releases, run by ``make``: lock files, images, bill of materials and distributions."""
