"""Nightjar: figures 2, 5 to 11 and tables 1 to 3."""

from reproduction import nightjar_claims as claims
from reproduction import nightjar_traced as traced
from reproduction import runs
from reproduction.experiment import experiment
from reproduction.measured import Waking
from reproduction.recorded import Lengths
from reproduction.simulated import Arrivals

SERVED = "serving-cpu.json"
EXPERIMENTS = (
    experiment("nightjar-figure2", runs.loads, claims.check_lengths, SERVED),
    experiment("nightjar-figure5", runs.loads, claims.check_low),
    experiment("nightjar-figure6", runs.loads, claims.check_high),
    experiment("nightjar-figure7", lambda: (Lengths(("alpaca", "mt_bench", "summarization")),), claims.check_inputs),
    experiment("nightjar-figure8", runs.loads, claims.check_static, SERVED),
    experiment("nightjar-figure9", lambda: (Arrivals(),), claims.check_arrivals),
    experiment("nightjar-figure10", runs.changing, traced.check_changing, "load-changes-600000.json"),
    experiment("nightjar-figure11", runs.loads, claims.check_contexts),
    experiment("nightjar-table1", lambda: (Waking("draft:ofa", (16, 64, 256), (1, 2, 4), 20),), claims.check_waking),
    experiment("nightjar-table2", runs.traced, traced.check_throughput),
    experiment("nightjar-table3", runs.traced, traced.check_latency),
)
