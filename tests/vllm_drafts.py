"""What vLLM drafts: run as a program, as an engine in the tests' own process would outlive its test.

Standard input holds a JSON list of cases: the folders of a target and of a head, vLLM's method, a prompt, how many
tokens are written and how many drafted, and the drafter's specification where wager is to start the engine. The last
line of the output is a JSON list with, for each case, the text and every draft with the number of tokens before it.
"""

import gc
import json
import os
import sys
from typing import Any

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_PLUGINS": "",
}
CACHE = 1 << 24  # bytes


def quick() -> None:
    """Leave out what takes an engine seconds here: inspecting models in processes of their own, freezing the heap."""
    from vllm.model_executor.models import registry

    registry._LazyRegisteredModel.inspect_model_cls = lambda entry: registry._ModelInfo.from_model_cls(  # type: ignore
        entry.load_model_cls()
    )
    gc.collect = lambda *_: 0  # type: ignore[assignment]


def recorded() -> list[tuple[int, list[int]]]:
    """A list that every draft from now on is added to, with the tokens before it."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    original, drafts = SpecDecodeBaseProposer.propose, list[tuple[int, list[int]]]()

    def propose(self: Any, *given: Any, **named: Any) -> Any:
        made = original(self, *given, **named)
        # The position of the last token the target has read; the token after it was sampled.
        at = int(named["target_positions"][int(named["token_indices_to_sample"][0])])
        drafts.append((at + 2, made[0].tolist()))
        return made

    SpecDecodeBaseProposer.propose = propose  # type: ignore[method-assign]
    return drafts


def run(case: dict[str, Any]) -> list[int]:
    """The text that vLLM writes after the prompt."""
    from vllm import LLM, SamplingParams, TokensPrompt

    import wager.vllm

    how: dict[str, Any] = {"enforce_eager": True, "enable_prefix_caching": False, "skip_tokenizer_init": True}
    how |= {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 1, "kv_cache_memory_bytes": CACHE}
    head = {"method": case["method"], "model": case["head"], "num_speculative_tokens": case["length"]}
    if case["spec"]:  # as `wager serve --drafter SPEC` starts it
        always = {"max_length": case["length"], "policy": f"fixed:drafter=eagle3,length={case['length']}"}
        how = wager.vllm.engine_args(case["target"], drafters=case["spec"], **always, **how)
        assert how["speculative_config"]["method"] == case["method"], how
    else:
        how |= {"model": case["target"], "speculative_config": head}
    llm = LLM(**how)
    params = SamplingParams(temperature=0, max_tokens=case["tokens"], ignore_eos=True, detokenize=False)
    made = llm.generate(TokensPrompt(prompt_token_ids=case["prompt"]), params, use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
    return list(made[0].outputs[0].token_ids)


def main() -> None:
    os.environ.update(ENVIRONMENT)
    cases = json.load(sys.stdin)
    quick()
    drafts, found = recorded(), []
    for case in cases:
        drafts.clear()
        found.append({"text": run(case), "drafts": list(drafts)})
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
