#!/bin/sh
# The recordings that the page's rows are tested on, made anew; on an H200 about a quarter of an hour, training aside.
#
#   WAGER_DATA=DATA sh reproduction/record.sh            all of them, with the specialists in reproduction/drafters
#   PROMPTS=1 TOKENS=16 BATCH=2 DTYPE=float32 OUT=/tmp/r sh …   a rehearsal on a CPU
#   TINYLLAMA=FOLDER sh …                                and TinyLlama-1.1B, saved in FOLDER, as a second target
#
# A recording that is there is left alone, so a second call goes on where the first was stopped. Before it, on the same
# machine, the specialists (training/specialists.toml; about ten minutes of answers, ten of training):
#
#   see docs/training.md, "Specialists"
#
# and, for the second target, a head of its own (training/tinyllama-1.1b.toml), to be found as eagle:ofa in
# WAGER_DRAFTERS/NAME-OF-FOLDER/eagle-ofa. Parts of a recording that were made alike, of different tasks, count as one: only
# the first is timed, and the others may be made at the same time.
set -eu
: "${WAGER_DATA:?a folder with prompts/ and corpora/}" "${PROMPTS:=40}" "${TOKENS:=128}" "${BATCH:=64}" "${PYTHON:=.venv/bin/python}"
export WAGER_DRAFTERS="${WAGER_DRAFTERS:-reproduction/drafters}" # eagle:ofa and the draft models are found in the checkout
: "${OUT:=results/recordings}" "${STORE:=build/corpora.store}" "${TINYLLAMA:=}" "${TIMED:=--timed}" "${DTYPE:=bfloat16}"
CHEAP="prompt-lookup,suffix,retrieval=$STORE"
MODELS="draft:ofa,draft:code,draft:math"
HEADS="eagle:ofa"
for name in mixed code math translation summarization chat; do
    if [ -d "$WAGER_DRAFTERS/smollm2-135m/eagle-$name" ]; then HEADS="$HEADS,eagle:$name"; fi
done
DETAIL="eagle:ofa,draft:ofa" # trees and confidence of these alone: they take most of the space
TREES="2@8x32,4@8x32,6@8x32"
mkdir -p "$OUT" build
if [ ! -f "$STORE" ]; then "$PYTHON" -m wager datastore build "$WAGER_DATA"/corpora/*.jsonl --out "$STORE"; fi

record() { # NAME, then options; prompts of the tasks' test part
    name=$1
    shift
    if [ -f "$OUT/$name.jsonl.gz" ]; then return; fi
    "$PYTHON" -m wager lab record --out "$OUT/$name.jsonl.gz" --max-tokens "$TOKENS" --batch "$BATCH" --seed 1 --dtype "$DTYPE" "$@"
}

FROM="--data $WAGER_DATA --part test --prompts $PROMPTS"
A="--task mt_bench --task translation --task summarization"
B="--task qa --task math_reasoning --task rag --task humaneval"
C="--task debug_bench --task xsum --task alpaca"
ALL="$CHEAP,$HEADS,$MODELS"
record greedy-a $FROM $A --drafters "$ALL" --trees "$TREES" --detail "$DETAIL" "$TIMED"
record greedy-b $FROM $B --drafters "$ALL" --trees "$TREES" --detail "$DETAIL" --untimed
record greedy-c $FROM $C --drafters "$ALL" --trees "$TREES" --detail "$DETAIL" --untimed
# Twice the prompts for the ways to adapt a window, which differ by little between long and short ones.
record windows --data "$WAGER_DATA" --part test --prompts 82 --task alpaca --task humaneval --task math_reasoning --drafters "$DETAIL" --untimed
record sampled-1.0-a $FROM $A --drafters "$ALL" --temperature 1 --untimed
record sampled-1.0-b $FROM $B --drafters "$ALL" --temperature 1 --untimed
record sampled-1.0-c $FROM $C --drafters "$ALL" --temperature 1 --untimed
record sampled-0.7 $FROM --drafters "$MODELS" --temperature 0.7 --untimed
for kind in rephrased long; do
    "$PYTHON" -m reproduction.perturb $kind --prompts "$PROMPTS" > "build/$kind.jsonl"
    record $kind "build/$kind.jsonl" --drafters "$HEADS,$MODELS" --untimed
done
if [ -n "$TINYLLAMA" ]; then
    own="$STORE-tinyllama" # of its own tokens
    if [ ! -f "$own" ]; then "$PYTHON" -m wager datastore build "$WAGER_DATA"/corpora/*.jsonl --model "$TINYLLAMA" --out "$own"; fi
    record tinyllama $FROM --model "$TINYLLAMA" --drafters "prompt-lookup,suffix,retrieval=$own,eagle:ofa" --trees "$TREES" --untimed
fi
