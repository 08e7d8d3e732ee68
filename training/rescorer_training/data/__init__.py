"""Text corpora as word ids: counted, encoded to disk and cut into batches."""
