"""Nightjar: figures 2, 5, 6, 8 to 11 and tables 1 to 3."""

from __future__ import annotations

from reproduction import nightjar_claims as claims
from reproduction import runs
from reproduction.experiment import Experiment, Longer
from reproduction.measured import Waking
from reproduction.simulated import Arrivals

SIMULATED = "Simulated serving with stated costs (docs/simulation.md) instead of vLLM on an RTX 4090 and an A100; "
EXPERIMENTS = (
    Experiment(
        "nightjar-figure2",
        "throughput by speculation length and request rate",
        "Speculation helps while few requests come and hurts when many do; the best length falls as the load grows.",
        SIMULATED + "loads of 1 to 48 kept up instead of request rates. Longer: vLLM's CPU build with n-gram drafts.",
        runs.loads,
        claims.check_lengths,
        (Longer(("serving-cpu.json",), lambda contents: claims.check_served_lengths(contents[0])),),
    ),
    Experiment(
        "nightjar-figure5",
        "all methods at low request rates",
        "Where speculation pays, Nightjar finds the length and is ahead of all other methods.",
        SIMULATED + "1 and 4 requests kept up.",
        runs.loads,
        claims.check_low,
    ),
    Experiment(
        "nightjar-figure6",
        "all methods at high request rates",
        "Where speculation costs, Nightjar turns it off, loses nothing against none, and is ahead of the others.",
        SIMULATED + "48 requests kept up.",
        runs.loads,
        claims.check_high,
    ),
    Experiment(
        "nightjar-figure8",
        "all methods, and all lengths, on Spec-Bench at fixed request rates",
        "At every rate Nightjar matches the best fixed length and is ahead of the other methods.",
        SIMULATED + "1 to 48 requests kept up. Longer: vLLM's CPU build with n-gram drafts.",
        runs.loads,
        claims.check_static,
        (Longer(("serving-cpu.json",), lambda contents: claims.check_served(contents[0])),),
    ),
    Experiment(
        "nightjar-figure9",
        "the trace of request rates that the dynamic experiments use",
        "Real traffic changes its rate manifold within minutes, so no fixed length can be right.",
        "The same public trace (Azure, conversations), all of it; without data, a drawn one.",
        lambda quick: (Arrivals(),),
        claims.check_arrivals,
    ),
    Experiment(
        "nightjar-figure10",
        "throughput over time under a changing load",
        "Nightjar has the highest throughput both while the load is low and while it is high.",
        SIMULATED + "2, 48, 2 and 48 requests kept up in turn.",
        lambda quick: (runs.changing(quick),),
        claims.check_changing,
    ),
    Experiment(
        "nightjar-figure11",
        "Nightjar beside LinUCB, linear Thompson sampling and ADA-BINGREEDY",
        "It is ahead of all three at every request rate, because throughput is no linear function of the batch size.",
        SIMULATED + "1 to 48 requests kept up.",
        runs.loads,
        claims.check_contexts,
    ),
    Experiment(
        "nightjar-table1",
        "what waking the idle draft model takes, by tokens missed and batch size",
        "The cost of switching speculation back on grows with the tokens missed and with the batch, up to many times.",
        "SmolLM2's small draft model reading missed tokens on the machine at hand, instead of a 0.5B model on "
        "an RTX 4090.",
        lambda quick: (Waking("draft:ofa", (16, 64, 256), (1, 2, 4), 3 if quick else 15),),
        claims.check_waking,
    ),
    Experiment(
        "nightjar-table2",
        "throughput of all methods under the trace, two pairs of models, three data sets",
        "Nightjar has the highest throughput for both pairs on all three data sets.",
        SIMULATED
        + "the Azure trace's arrivals, two stated cost tables for the pairs, three acceptances for the data sets.",
        runs.traced,
        claims.check_throughput,
    ),
    Experiment(
        "nightjar-table3",
        "mean latency of all methods in the same runs",
        "Nightjar's latency is below that of fixed speculation and of the other adaptive methods in most settings.",
        SIMULATED + "the same runs as table 2.",
        runs.traced,
        claims.check_latency,
    ),
)
