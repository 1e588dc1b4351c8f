#!/bin/sh
# The recordings that the page's rows are tested on, made anew; on an H200 about a quarter of an hour, training aside.
#
#   WAGER_DATA=DATA sh reproduction/record.sh            all of them, with the specialists in drafters/smollm2-135m
#   PROMPTS=1 TOKENS=16 BATCH=2 OUT=/tmp/r sh …          a rehearsal
#   TINYLLAMA=FOLDER sh …                                and TinyLlama-1.1B, saved in FOLDER, as a second target
#
# A recording that is there is left alone, so a second call goes on where the first was stopped. Before it, on the same
# machine, the specialists (training/specialists.toml; about ten minutes of answers, ten of training):
#
#   wager train answers training/specialists.toml --data DATA --out build/answers
#   wager train drafters training/specialists.toml --answers build/answers --together --minutes 10
#   wager train evaluate training/specialists.toml --data DATA
#
# and, for the second target, a head of its own, to be found as eagle:ofa in WAGER_DRAFTERS/NAME-OF-FOLDER/eagle-ofa.
# On a busy CPU make a recording task by task (--task, --untimed): parts that were made alike count as one.
set -eu
: "${WAGER_DATA:?a folder with prompts/ and corpora/}" "${PROMPTS:=40}" "${TOKENS:=128}" "${BATCH:=64}" "${PYTHON:=.venv/bin/python}"
: "${OUT:=results/recordings}" "${STORE:=build/corpora.store}" "${TINYLLAMA:=}" "${TIMED:=--timed}" "${TASKS:=}"
CHEAP="prompt-lookup,suffix,retrieval=$STORE"
MODELS="draft:ofa,draft:code,draft:math"
HEADS="eagle:ofa"
for name in mixed code math translation summarization chat; do
    if [ -d "drafters/smollm2-135m/eagle-$name" ]; then HEADS="$HEADS,eagle:$name"; fi
done
DETAIL="eagle:ofa,draft:ofa" # trees and confidence of these alone: they take most of the space
TREES="2@8x32,4@8x32,6@8x32"
mkdir -p "$OUT" build
if [ ! -f "$STORE" ]; then "$PYTHON" -m wager datastore build "$WAGER_DATA"/corpora/*.jsonl --out "$STORE"; fi

record() { # NAME, then options; prompts of the tasks' test part
    name=$1
    shift
    if [ -f "$OUT/$name.jsonl.gz" ]; then return; fi
    "$PYTHON" -m wager lab record --out "$OUT/$name.jsonl.gz" --max-tokens "$TOKENS" --batch "$BATCH" --seed 1 "$TIMED" "$@"
}

FROM="--data $WAGER_DATA --part test --prompts $PROMPTS $TASKS"
record greedy $FROM --drafters "$CHEAP,$HEADS,$MODELS" --trees "$TREES" --detail "$DETAIL"
record sampled-1.0 $FROM --drafters "$CHEAP,$HEADS,$MODELS" --temperature 1
record sampled-0.7 $FROM --drafters "$MODELS" --temperature 0.7
for kind in rephrased long; do
    "$PYTHON" -m reproduction.perturb $kind --prompts "$PROMPTS" > "build/$kind.jsonl"
    record $kind "build/$kind.jsonl" --drafters "$HEADS,$MODELS"
done
if [ -n "$TINYLLAMA" ]; then
    record tinyllama $FROM --model "$TINYLLAMA" --drafters "$CHEAP,eagle:ofa" --trees "$TREES"
fi
