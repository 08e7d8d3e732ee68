"""Read and write text, JSON and folders, with the file and line in every error."""
