"""The real server on the real model, through the real client: both hooks write what the model writes by itself.

Each hook has a class and a server of its own. In a run of all tests each of two workers begins with one: see conftest.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from threading import Event
from typing import Any, ClassVar

import pytest
import torch

if getattr(find_spec("vllm"), "origin", None) is None:  # the tests do not import it; this folder has its name, too
    pytest.skip("vLLM is not installed; see the README on serving", allow_module_level=True)
openai = pytest.importorskip("openai", reason="the OpenAI client is not installed; it comes with wager[bench]")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402
from typer.testing import CliRunner  # noqa: E402
from waiting import allowed, wait_until  # noqa: E402

from wager.bench.endurance import TIE, Reference  # noqa: E402
from wager.bench.servers import Server  # noqa: E402
from wager.cli.app import app  # noqa: E402
from wager.drafters import shipped  # noqa: E402
from wager.vllm.settings import PROPOSER, SCHEDULER, Settings  # noqa: E402

ARGUMENTS = ("--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "12", "--no-enable-prefix-caching")
# One thread, on any core: by itself vLLM binds the model of every server to the same one.
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
# The head shipped for the model; where a checkout came without it, the target drafts for itself.
HEAD = "eagle:ofa" if "eagle:ofa" in shipped.available("smollm2-135m") else "draft-model=smollm2-135m"
TOKENS = 24

FRUIT = "apple, pear, plum, quince, apple, pear, plum, quince, apple, pear"
PROMPTS = [
    f"Repeat this list exactly, three times: {FRUIT}.",
    "Write the numbers from one to twelve as words, separated by commas.",
    "def add(a, b):\n    return a + b\n\nRewrite this function with type hints, and repeat it twice.",
    "Tell me a short story about a lighthouse.",
    f"Sort these words and write every one of them: {FRUIT}.",
    "Summarize: The harbour was quiet. The boats lay in the harbour. The harbour master slept. The boats waited.",
    "Translate to French: The cat sits on the table, and the dog sits under the table.",
    "Copy this text: one two three four five six seven eight nine ten one two three four five six seven.",
    "What is the capital of Italy, and what is it known for?",
    "List five animals, then list the same five animals again.",
    "for i in range(10):\n    print(i)\n\nExplain this code line by line, quoting each line.",
    "Say hello ten times.",
]


def ask(server: Server, prompt: str, **given: Any) -> Any:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)
    given = {"max_tokens": TOKENS, "temperature": 0, "messages": [{"role": "user", "content": prompt}], **given}
    return client.chat.completions.create(model="smollm2-135m", **given)


@pytest.fixture(scope="class")
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that need not answer yet; its files stand beside its log."""
    folder = tmp_path_factory.mktemp("server")
    files = ("--state", str(folder / "state.json"), "--control", str(folder / "policy"))
    arguments = ("smollm2-135m", *request.cls.arguments, *files, "--log-seconds", "2", *ARGUMENTS)
    environment = {**ENVIRONMENT, **request.cls.environment}
    with Server.wager(*arguments, log=folder / "server.log", environment=environment) as made:
        yield made


@pytest.fixture(scope="module")
def expected(smollm2: tuple[Any, Any]) -> list[Reference]:
    """What the model writes in transformers, with how far each token is ahead of the next likeliest."""
    model, tokenizer = smollm2
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    how = {"padding": True, "return_dict": True, "return_tensors": "pt", "tokenizer_kwargs": {"padding_side": "left"}}
    ids = tokenizer.apply_chat_template(chats, add_generation_prompt=True, **how)
    settings = {"max_new_tokens": TOKENS, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    made = model.generate(**ids, **settings)
    first, second = torch.stack(made.logits, 1).topk(2).values.unbind(-1)  # (prompts, tokens)
    found = []
    for tokens, leads in zip(made.sequences[:, -first.shape[1] :].tolist(), (first - second).tolist(), strict=True):
        end = tokens.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in tokens else len(tokens)
        found.append(Reference(tuple(tokenizer.decode([token]) for token in tokens[:end]), tuple(leads[:end])))
    return found


@pytest.fixture(scope="class")
def server(started: Server, expected: list[Reference]) -> Server:
    """It is up; what is expected of it was computed meanwhile."""
    return started.wait()


def counters(server: Server) -> dict[str, float]:
    """Every metric of the server, summed over its labels."""
    total: dict[str, float] = {}
    for family in text_string_to_metric_families(server.metrics()):
        for sample in family.samples:
            total[sample.name] = total.get(sample.name, 0.0) + sample.value
    return total


def idle(server: Server) -> bool:
    return counters(server).get("vllm:num_requests_running", 0) == 0


def settled(server: Server) -> dict[str, float]:
    """The counters of a server without requests, once wager's were written after the last step."""
    wait_until(lambda: idle(server), "a request is still running")
    asleep = time.time()
    wait_until(lambda: counters(server)["wager_updated_timestamp_seconds"] > asleep, "the counters were not written")
    return counters(server)


def wait_for_growth(server: Server, before: dict[str, float], *names: str) -> None:
    """Where drafting does not pay nothing may be drafted for a while: short answers may need another one."""

    def grew() -> bool:
        now = counters(server)
        if all(now.get(name, 0) > before.get(name, 0) for name in names):
            return True
        ask(server, PROMPTS[7])
        return False

    wait_until(grew, f"{', '.join(names)} did not grow, so nothing was shown")


def pulls(server: Server) -> dict[str, float]:
    """Arm -> its rounds."""
    families = text_string_to_metric_families(server.metrics())
    samples = [sample for family in families for sample in family.samples if sample.name == "wager_pulls_total"]
    return {sample.labels["arm"]: sample.value for sample in samples}


def played(server: Server) -> set[str]:
    """The arms that were played."""
    return {arm for arm, count in pulls(server).items() if count}


def test_a_changed_text_would_be_seen(expected: list[Reference]) -> None:
    text = expected[0].text
    at = next(i for i, lead in enumerate(expected[0].leads) if lead > TIE)
    wrong = "".join(expected[0].tokens[:at]) + "@" + text[at + 1 :]
    assert not expected[0].differs(text)
    assert expected[0].differs(wrong)
    assert expected[0].differs(text + " and more")


class Served:
    """What must hold of a server, whichever hook it uses."""

    arguments: tuple[str, ...]  # of `wager serve`
    settings: Settings  # what they say
    environment: ClassVar[dict[str, str]] = {}

    @pytest.mark.parametrize(("concurrency", "policy"), [(1, ""), (12, "random"), (12, "auto")])
    def test_greedy_texts_are_those_of_the_model(
        self, expected: list[Reference], server: Server, concurrency: int, policy: str
    ) -> None:
        server.log.with_name("policy").write_text(policy)  # empty: as it was started
        before = counters(server)
        prompts = PROMPTS if concurrency > 1 else PROMPTS[:5]  # one by one takes longest
        with ThreadPoolExecutor(concurrency) as pool:
            texts = list(pool.map(lambda prompt: ask(server, prompt).choices[0].message.content, prompts))
        wrong = [i for i, text in enumerate(texts) if expected[i].differs(text)]
        assert not wrong, [(texts[i], expected[i].text) for i in wrong]
        # auto decides by itself whether drafting pays, and in a batch it need not; random always drafts sometimes.
        wait_for_growth(server, before, "wager_pulls_total" if policy == "auto" else "wager_accepted_tokens_total")
        if self.settings.hook == SCHEDULER and concurrency == 1:  # by far enough steps for each to have had its turn
            arms = {str(arm) for arm in self.settings.arms}
            wait_until(lambda: played(server) == arms, "off and every length were not all played")

    def test_a_stream_is_the_same_text(self, expected: list[Reference], server: Server) -> None:
        chunks = ask(server, PROMPTS[0], stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert len(pieces) > 2
        assert not expected[0].differs("".join(pieces))

    def test_an_aborted_request_leaves_nothing_behind(self, expected: list[Reference], server: Server) -> None:
        stream = ask(server, PROMPTS[3], max_tokens=600, stream=True, extra_body={"ignore_eos": True})
        for n, _ in enumerate(stream):
            if n == 3:
                break
        stream.close()
        wait_until(lambda: idle(server), "the aborted request is still running")
        assert not expected[1].differs(ask(server, PROMPTS[1]).choices[0].message.content)

    def test_a_request_can_turn_speculation_off(self, expected: list[Reference], server: Server) -> None:
        wait_until(lambda: idle(server), "a request of an earlier test is still running")
        before, rounds = settled(server), pulls(server)
        answer = ask(server, PROMPTS[0], extra_body={"vllm_xargs": {"wager_max_length": 0}})
        assert not expected[0].differs(answer.choices[0].message.content)
        name = "vllm:spec_decode_num_draft_tokens_total"
        assert settled(server).get(name, 0) == before.get(name, 0)
        if self.settings.hook == PROPOSER:  # which books what was played request by request
            assert {arm for arm, count in pulls(server).items() if count != rounds.get(arm)} == {"off"}

    def test_sampled_tokens_are_likely_ones_and_greedy_texts_beside_them_stay(
        self, expected: list[Reference], server: Server
    ) -> None:
        # Tokens of the likelier half of the distribution, as top_p asks: a sampler that loses its settings on the way
        # to the drafts takes any of 49,152.
        drawn_so: dict[str, Any] = {"logprobs": True, "temperature": 0.8, "extra_body": {"top_p": 0.5}}
        with ThreadPoolExecutor(8) as pool:
            drawn = [pool.submit(ask, server, PROMPTS[7], seed=seed, **drawn_so) for seed in range(4)]
            greedy = [pool.submit(ask, server, prompt) for prompt in PROMPTS[:4]]
            answers = [one.result() for one in drawn]
            texts = [one.result().choices[0].message.content for one in greedy]
        unlikely = [t for answer in answers for t in answer.choices[0].logprobs.content if t.logprob < -5]
        assert not unlikely
        assert not [i for i, text in enumerate(texts) if expected[i].differs(text)]

    def test_a_response_is_in_the_metrics_when_it_arrives(self, server: Server) -> None:
        before = settled(server)
        for number in range(1, 5):
            ask(server, PROMPTS[number], max_tokens=9)
            answered, found = time.time(), counters(server)
            if self.settings.hook == SCHEDULER:
                assert self._complete(before, found, number), (before, found)
            while not self._complete(before, found, number):  # the proposer's are written while the response travels
                assert found["wager_updated_timestamp_seconds"] - answered < allowed(0.1), (before, found)
                found = counters(server)

    def _complete(self, before: dict[str, float], found: dict[str, float], requests: int) -> bool:
        """Whether tokens, rounds and arms are those of all requests since."""
        new = {name: found[name] - before[name] for name in before}
        generated, tokens = new["vllm:generation_tokens_total"], new["wager_tokens_total"]
        rounds = new["wager_pulls_total"] + new["wager_accepted_tokens_total"]
        after_ends = (1 + self.settings.max_length) * requests
        added_up = tokens - requests == new["wager_emitted_tokens_total"] == rounds
        return added_up and generated <= tokens <= generated + after_ends

    def test_the_metrics_add_up_and_top_shows_them(self, server: Server) -> None:
        wait_for_growth(server, counters(server), "wager_pulls_total", "wager_steps_total")
        found = settled(server)
        assert found["wager_accepted_tokens_total"] <= found["wager_drafted_tokens_total"]
        assert found["wager_emitted_tokens_total"] >= found["wager_pulls_total"] > 0
        # A request's first token belongs to no round, and what was verified after its end is not generated.
        begun = found["vllm:time_to_first_token_seconds_count"]  # vLLM's count of successes leaves out the aborted one
        of_rounds = found["vllm:generation_tokens_total"] - begun
        after_ends = (1 + self.settings.max_length) * begun
        assert of_rounds <= found["wager_emitted_tokens_total"] <= of_rounds + after_ends
        assert found["wager_steps_total"] > 0
        assert 0 < found["wager_decision_seconds_total"] / found["wager_steps_total"] < allowed(0.005)
        assert found["wager_info"] == 1
        shown = CliRunner().invoke(app, ["top", server.url, "--once", "--json", "--interval", "1"])
        assert shown.exit_code == 0, shown.output
        assert json.loads(shown.stdout)

    def test_state_is_whole_when_the_server_is_killed(self, server: Server) -> None:
        state, killed = server.log.with_name("state.json"), Event()

        def keep_asking(prompt: str) -> None:  # steps are what makes the server save
            while not killed.is_set():
                ask(server, prompt)

        def written() -> int:
            return state.stat().st_mtime_ns if state.exists() else 0

        before = written()
        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(keep_asking, prompt) for prompt in PROMPTS[:4]]
            try:
                wait_until(lambda: written() > before, "the state was not saved")
            finally:
                killed.set()
                server.kill()
            for answer in running:
                answer.exception()
        content = json.loads(state.read_text())
        self.settings.build_policy().load_state_dict(content["state"])


class TestSchedulerHook(Served):
    arguments = ("--drafter", HEAD, "--max-length", "3", "--policy", "random")  # another length in every step
    settings = Settings((HEAD,), 3, "random")
    # The model in the process of the scheduler, as on one GPU: one process less to start. The other server has both.
    environment: ClassVar = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


class TestProposerHook(Served):  # the default
    arguments = ()
    settings = Settings()


class TestTwoRanks:
    """Data-parallel ranks of a dense model: each is an engine that decides for itself."""

    arguments = ("--drafter", "suffix", "--max-length", "3", "--policy", "random", "--data-parallel-size", "2")
    environment: ClassVar[dict[str, str]] = {}

    def test_both_draft_and_write_what_the_model_writes(self, expected: list[Reference], server: Server) -> None:
        with ThreadPoolExecutor(12) as pool:
            texts = list(pool.map(lambda prompt: ask(server, prompt).choices[0].message.content, PROMPTS))
        assert not [i for i, text in enumerate(texts) if expected[i].differs(text)]
        families = text_string_to_metric_families(server.metrics())
        samples = [sample for family in families for sample in family.samples]
        served = {s.labels["engine"]: s.value for s in samples if s.name == "vllm:time_to_first_token_seconds_count"}
        drafted = {s.labels["engine"]: s.value for s in samples if s.name == "vllm:spec_decode_num_draft_tokens_total"}
        assert sum(served.values()) == len(PROMPTS)
        assert min(served.values()) > 0
        assert len(served) == len(drafted) == 2
        assert min(drafted.values()) > 0

    def test_the_metrics_are_those_of_both_together(self, server: Server) -> None:
        found = settled(server)
        rounds = found["wager_pulls_total"] + found["wager_accepted_tokens_total"]
        begun = found["vllm:time_to_first_token_seconds_count"]
        assert rounds == found["wager_emitted_tokens_total"] == found["wager_tokens_total"] - begun
        assert found["wager_tokens_total"] >= found["vllm:generation_tokens_total"]

    def test_each_keeps_a_state_of_its_own(self, server: Server) -> None:
        states = [server.log.with_name(name) for name in ("state.json", "state.1.json")]

        def saved() -> bool:
            with ThreadPoolExecutor(4) as pool:  # steps are what makes a rank save
                list(pool.map(lambda prompt: ask(server, prompt), PROMPTS[:4]))
            return all(state.exists() for state in states)

        wait_until(saved, "the states were not saved")
        for state in states:
            Settings(("suffix",), 3, "random").build_policy().load_state_dict(json.loads(state.read_text())["state"])
