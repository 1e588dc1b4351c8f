"""MetaSD: tables 2 to 17 and 19, figures 2, 3 and 6."""

from __future__ import annotations

from reproduction import metasd_claims as claims
from reproduction import metasd_rewards as rewards
from reproduction import runs
from reproduction.analyses import Batched, BestShare, DraftAll, Rewards, Routed
from reproduction.engine import Generated
from reproduction.experiment import Experiment, Longer
from reproduction.recorded import Replayed
from reproduction.runs import BE, EXP3, FIVE, HALVING, MODELS, RANDOM, UCB
from reproduction.workspace import Run

LENGTH = 5  # MetaSD's N_max
SMALL = "SmolLM2-135M instead of Vicuna 7B. "
BLACK = SMALL + (
    "Small models shipped for it: one for everything, specialists for code and math; recorded texts are replayed under "
    "the H200's costs. "
)
WHITE = SMALL + "EAGLE heads shipped for it: one for everything and five specialists, chains of 4. "
KEPT = "What a policy learns is kept from prompt to prompt. "
LANGUAGES = "There are no drafters for single languages: specialists of domains take their place. "
BLACK_H200, WHITE_H200 = "metasd-black-h200.json", "metasd-white-h200.json"


def models(quick: bool, *policies: str, drafters: tuple[str, ...] = MODELS, apart: bool = False) -> Replayed:
    """The small models and prompt lookup, each alone, and policies over the models."""
    return Replayed(runs.everything(quick), drafters, (LENGTH,), policies, cost="h200", apart=apart)


def sampled(quick: bool, names: tuple[str, ...], temperature: float) -> Generated:
    """Drafters alone and MetaSD over them on the five tasks, sampled."""
    return Generated(FIVE, 1 if quick else 6, 32 if quick else 128, runs.arms(names), (UCB,), temperature=temperature)


SOME = ("eagle:ofa", "eagle:code", "eagle:math", "eagle:translation")


def mixed(quick: bool) -> tuple[Run, ...]:
    tasks = ("math_then_code", "translation_then_math")
    arms = runs.arms(("eagle:ofa", "eagle:code", "eagle:math", "eagle:translation"))
    return (Generated(tasks, 2 if quick else 8, 72 if quick else 192, arms, (UCB, "discounted-ucb")),)


def long_and_short(quick: bool) -> tuple[Run, ...]:
    count, words, prompt = (2, 120, 512) if quick else (8, 240, 1024)
    arms, tokens = runs.arms(SOME), (80, 40) if quick else (256, 128)
    long = Generated(("translation",), count, tokens[0], arms, (UCB,), prompt=prompt, words=words)
    return (long, Generated(("translation",), count, tokens[1], arms, (UCB,), prompt=prompt))


def lengths(quick: bool) -> tuple[Run, ...]:
    return tuple(
        Replayed(runs.everything(quick), MODELS, (n,), (UCB,), labels=("humaneval", "debug_bench"))
        for n in (1, 2, 3, 5, 8)
    )


def shares(quick: bool) -> tuple[Run, ...]:
    labels = ("humaneval", "debug_bench", "math_reasoning")
    own = BestShare(runs.everything(quick), MODELS, LENGTH, (UCB, BE, EXP3, HALVING), labels, seeds=5)
    return (own, runs.heads(quick))


EXPERIMENTS = (
    Experiment(
        "metasd-table2",
        "mean, variance and zeros of block efficiency and block divergence, Japanese prompts, five drafters",
        "Divergence tells drafters apart better than efficiency: its gaps between the best drafter and the "
        "others are wider, "
        "its variance lower, and it is never zero, where efficiency is zero in half to three quarters of the rounds.",
        BLACK + LANGUAGES + "Code and math prompts; rewards at every position of recorded texts.",
        lambda quick: tuple(
            Rewards(runs.everything(quick), MODELS, LENGTH, labels)
            for labels in (("humaneval", "debug_bench"), ("math_reasoning",))
        ),
        rewards.rewards,
    ),
    Experiment(
        "metasd-table3",
        "speed of single small drafters, other methods and bandits over the drafters on five tasks",
        "Each specialist is best at home and poor elsewhere; MetaSD with UCB beats the drafter for everything on most "
        "tasks, and random choice, EXP3 and halving on all.",
        BLACK + KEPT + "Prompt lookup stands for the other methods; Lookahead is not here.",
        lambda quick: (models(quick, UCB, EXP3, HALVING, RANDOM), models(quick, drafters=("prompt-lookup",))),
        lambda results: claims.selection(results[0], "draft", results[1]),
        (Longer((BLACK_H200,), lambda contents: claims.selection(contents[0], "draft")),),
    ),
    Experiment(
        "metasd-table4",
        "the same with EAGLE drafters, beside BPD and Medusa",
        "Heads behave as small models do: specialists win at home, UCB beats the head for everything on most tasks and "
        "every other bandit.",
        WHITE + KEPT + "BPD and Medusa are not here.",
        lambda quick: (runs.heads(quick),),
        lambda results: claims.selection(results[0], "eagle"),
        (Longer((WHITE_H200,), lambda contents: claims.selection(contents[0], "eagle")),),
    ),
    Experiment(
        "metasd-table5",
        "speed on five languages of one specialist each, of all drafting at once, and of bandits",
        "UCB beats EXP3 on most languages and drafters that are away from home; letting all draft in every round is "
        "slower than plain decoding.",
        BLACK + LANGUAGES + KEPT,
        lambda quick: (models(quick, UCB, EXP3), DraftAll(runs.everything(quick), MODELS, LENGTH, "h200")),
        claims.draft_all,
        (Longer((BLACK_H200,), claims.draft_all),),
    ),
    Experiment(
        "metasd-table6",
        "MetaSD beside a classifier that picks the drafter once a prompt: at home, rephrased, out of domain",
        "MetaSD is faster than the router on prompts as they are, loses less when they are rephrased, and is faster on "
        "tasks that no drafter was made for.",
        SMALL + "The router is a softmax regression on the prompt's embeddings, not BERT. " + KEPT,
        lambda quick: (
            Routed(runs.everything(quick), MODELS, "draft:ofa", LENGTH, (UCB,), "h200"),
            Routed(runs.reworded(quick), MODELS, "draft:ofa", LENGTH, (UCB,), "h200"),
            runs.heads_routed(quick),
            runs.heads_reworded(quick),
        ),
        claims.routing,
    ),
    Experiment(
        "metasd-table7",
        "UCB with either reward, small models and heads, five tasks",
        "With block divergence UCB is faster than with block efficiency on every task for small models, and on "
        "balance for heads.",
        SMALL + KEPT,
        lambda quick: (models(quick, UCB, BE), runs.heads(quick)),
        rewards.two_rewards,
        (Longer((BLACK_H200, WHITE_H200), rewards.two_rewards),),
    ),
    Experiment(
        "metasd-table8",
        "EAGLE drafters on rephrased prompts",
        "When prompts are said in other words everything is a little slower; UCB still beats the head for "
        "everything on most tasks.",
        WHITE + KEPT + "Instructions are rephrased by templates, not by GPT-4o.",
        lambda quick: (runs.heads_reworded(quick), runs.heads(quick)),
        lambda results: claims.reworded(results, "eagle"),
    ),
    Experiment(
        "metasd-table9",
        "speed of every language's drafter on every language",
        "A drafter for one language is by far the best on it and of little use on the others.",
        WHITE + LANGUAGES + "Longer: 80 prompts a task on an H200, tokens a round.",
        lambda quick: (runs.heads(quick),),
        lambda results: claims.matrix(results[0]),
        (Longer(("drafters.json",), lambda contents: claims.matrix_of_tokens(contents[0])),),
    ),
    Experiment(
        "metasd-table10",
        "translation of long texts",
        "On long texts UCB comes within a per cent of the best drafter, closer than on short ones.",
        WHITE + "German sentences of Spec-Bench joined to long ones. " + KEPT,
        long_and_short,
        claims.long_texts,
    ),
    Experiment(
        "metasd-table11",
        "tasks that no drafter was made for: RAG and finance questions",
        "Out of domain UCB is faster than the drafter for everything, for small models and heads, and than most "
        "specialists.",
        SMALL + "RAG of Spec-Bench, and Alpaca in place of finance questions. " + KEPT,
        lambda quick: (models(quick, UCB), runs.heads(quick)),
        claims.abroad,
        (Longer((BLACK_H200, WHITE_H200), claims.abroad),),
    ),
    Experiment(
        "metasd-table12",
        "small drafters on rephrased prompts",
        "As with heads: UCB beats the drafter for everything on most tasks though prompts are rephrased.",
        BLACK + KEPT + "Instructions are rephrased by templates, not by GPT-4o.",
        lambda quick: (Replayed(runs.reworded(quick), MODELS, (LENGTH,), (UCB,), cost="h200"), models(quick, UCB)),
        lambda results: claims.reworded(results, "draft"),
    ),
    Experiment(
        "metasd-table13",
        "recomputing the drafter's cache beside a window over it (StreamingLLM)",
        "It makes little difference: both come within a few per cent of each other on every task.",
        WHITE + "A window of 64 entries for texts of these lengths. " + KEPT,
        lambda quick: (
            Generated(
                FIVE,
                1 if quick else 6,
                40 if quick else 192,
                runs.arms(("eagle:ofa", "eagle:code", "eagle:math")),
                (UCB,),
                window=64,
                alone=(),
            ),
        ),
        rewards.windows,
    ),
    Experiment(
        "metasd-table14",
        "small drafters at temperature 0.7",
        "Specialists stay best at home, and UCB beats every drafter that is away from home.",
        BLACK + KEPT,
        lambda quick: (sampled(quick, MODELS, 0.7),),
        lambda results: claims.sampled(results[0], "draft"),
        (Longer(("temperature-0.7-h200.json",), lambda contents: claims.sampled(contents[0], "draft")),),
    ),
    Experiment(
        "metasd-table15",
        "small drafters at temperature 1",
        "UCB stays faster than the drafter for everything on all tasks when texts are sampled.",
        BLACK + KEPT,
        lambda quick: (sampled(quick, MODELS, 1.0),),
        lambda results: claims.sampled(results[0], "draft"),
        (Longer(("temperature-1.0-h200.json",), lambda contents: claims.sampled(contents[0], "draft")),),
    ),
    Experiment(
        "metasd-table16",
        "EAGLE drafters at temperature 1",
        "The same with heads: UCB beats the head for everything on most tasks.",
        WHITE + KEPT,
        lambda quick: (sampled(quick, SOME, 1.0),),
        lambda results: claims.sampled(results[0], "eagle"),
        (Longer(("temperature-1.0-h200.json",), lambda contents: claims.sampled(contents[0], "eagle")),),
    ),
    Experiment(
        "metasd-table17",
        "throughput on more foreign tasks, and of batches of one task or of many",
        "One request at a time UCB beats the drafter for everything on foreign tasks; in batches of one task it stays "
        "ahead, in mixed batches it falls behind as the batch grows, since every drafter takes its own pass.",
        BLACK + "MT-Bench, RAG and Alpaca in place of Physics, HotpotQA and MMLU; batches are recorded texts stepped "
        "together under the H200's costs.",
        lambda quick: (
            models(quick, UCB),
            Batched(runs.everything(quick), MODELS, "draft:ofa", LENGTH, (1, 2, 4), UCB, FIVE),
        ),
        rewards.batches,
    ),
    Experiment(
        "metasd-table19",
        "prompts with two tasks in them: the best drafter changes half-way",
        "UCB is faster than the best single drafter, which is all that a router could pick.",
        WHITE + "Two tasks in one prompt (math then code, translation then math) in place of two languages.",
        mixed,
        lambda results: claims.mixed(results[0]),
        (Longer(("mixed-h200.json",), lambda contents: claims.mixed(contents[0])),),
    ),
    Experiment(
        "metasd-figure2",
        "accepted tokens and speed of the best drafter and of UCB by draft length, code",
        "Longer drafts first bring more tokens and speed; beyond a point they bring little more and cost speed.",
        BLACK + "Lengths 1 to 8 on recorded texts under the CPU's costs. " + KEPT,
        lengths,
        rewards.by_length,
    ),
    Experiment(
        "metasd-figure3",
        "share of rounds that play the best drafter, over the rounds, by reward and bandit",
        "UCB comes to play the best drafter sooner than EXP3 and halving, and with divergence sooner than with "
        "efficiency.",
        SMALL + "Small models on recorded texts, heads in real rounds. " + KEPT,
        shares,
        rewards.best_share,
    ),
    Experiment(
        "metasd-figure6",
        "mean and spread of block divergence over the first ten rounds",
        "They stay the same from round to round, so the assumption of a stationary reward is sound.",
        BLACK + LANGUAGES + "The first ten rounds of every recorded text.",
        lambda quick: (Rewards(runs.everything(quick), MODELS, LENGTH, ()),),
        rewards.stationary,
    ),
)
