"""Nightjar: figures 2, 5, 6, 8 to 11 and tables 1 to 3."""

from reproduction import nightjar_claims as claims
from reproduction import runs
from reproduction.experiment import Longer, experiment
from reproduction.measured import Waking
from reproduction.simulated import Arrivals

SERVED = ("serving-cpu.json",)
EXPERIMENTS = (
    experiment("nightjar-figure2", runs.loads, claims.check_lengths, Longer(SERVED, claims.check_served_lengths)),
    experiment("nightjar-figure5", runs.loads, claims.check_low),
    experiment("nightjar-figure6", runs.loads, claims.check_high),
    experiment("nightjar-figure8", runs.loads, claims.check_static, Longer(SERVED, claims.check_served)),
    experiment("nightjar-figure9", lambda quick: (Arrivals(),), claims.check_arrivals),
    experiment("nightjar-figure10", lambda quick: (runs.changing(quick),), claims.check_changing),
    experiment("nightjar-figure11", runs.loads, claims.check_contexts),
    experiment(
        "nightjar-table1",
        lambda quick: (Waking("draft:ofa", (16, 64, 256), (1, 2, 4), 3 if quick else 15),),
        claims.check_waking,
    ),
    experiment("nightjar-table2", runs.traced, claims.check_throughput),
    experiment("nightjar-table3", runs.traced, claims.check_latency),
)
