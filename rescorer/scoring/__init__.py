"""From lists to ranked lists; the models run elsewhere.

Lists and options come in, prepared lists, batches with requests for scores, columns and rankings go out.
``batch`` cuts, builds and sums, ``components`` says what a number of a hypothesis is, ``ranker`` prepares and
ranks. ``rescorer.pipeline`` drives them in one process, ``rescorer.service`` with workers.
"""
