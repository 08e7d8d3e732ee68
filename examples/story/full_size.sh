#!/bin/sh
# The story of docs/story.md at full size: train the recipe `story` on novels, and rank the demo's lists by each model.
# Run it in a checkout: examples/story/full_size.sh TEXT [FOLDER], TEXT being the folder that has books/; a quarter
# of an hour of one core. It continues where it was interrupted.
set -eu
text=${1:?expected TEXT, the folder that has books/}
folder=${2:-story}
[ -e "$folder/report.md" ] || rescorer-train run story --data "$text" -o "$folder"
[ -d "$folder/lists/1" ] || rescorer-train bundle "$folder/lists/1" --validation "$text/books/valid.txt.gz" \
  --ngram kn4="$folder/ngram.arpa.gz" --ngram kn2="$folder/ngrams/bigram.ngram" --ngram kn3="$folder/ngrams/trigram.ngram" \
  --neural lbl="$folder/networks/lbl" \
  --neural elman="$folder/networks/elman" --neural lstm="$folder/networks/lstm" \
  --stream acoustic=1 --lm-weight 9.5 --word -0.6296
rescorer evaluate demo/lists.jsonl.gz --bundle "$folder/lists/1" --columns accuracy,oracle,worst
rescorer evaluate demo/lists.jsonl.gz --bundle "$folder/lists/1" --json > "$folder/evaluation.json"
python examples/story/draw.py models "Novels, and the demo's lists=$folder/evaluation.json" -o "$folder/models.svg"
