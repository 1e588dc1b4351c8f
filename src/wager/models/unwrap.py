"""The transformers model inside what others wrap around it: torch.compile, PEFT."""

from typing import Any


def unwrapped(model: Any) -> Any:
    """The model itself; adapters that are part of its layers stay where they are and active."""
    while True:
        if (inner := getattr(model, "__dict__", {}).get("_modules", {}).get("_orig_mod")) is not None:
            model = inner  # of torch.compile, whose graphs are made for one width
        elif hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            model = _without_peft(model)
        else:
            return model


def _without_peft(model: Any) -> Any:
    """The base model of a PEFT one."""
    for name, adapter in model.peft_config.items():
        if getattr(adapter, "is_prompt_learning", False):
            what = f"adapter {name!r} puts virtual tokens before the text, which only PEFT's own forward does"
            raise ValueError(f"{what}; use adapters inside the layers, such as LoRA, or generate without wager")
    return model.get_base_model()
