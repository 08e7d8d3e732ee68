"""Read and write tables with one list per row, in the columnar format parquet.

Files, folders and objects come in; rows become records with the fields of JSON lines, and these become lists.
"""
