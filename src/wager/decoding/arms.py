"""The arms a decoder plays: its drafters, the lengths they draft and the trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wager.core import LONGEST, OFF, Arm, Tree
from wager.core.require import is_whole
from wager.drafters import Drafter, registry, shipped
from wager.models import load, load_model
from wager.models.fingerprint import fingerprint
from wager.models.runner import WIDEST_TREE, Runner
from wager.policies.base import require

TREES = ((4, Tree(4, 16)), (6, Tree(8, 32)))  # depth and shape: those that cards tell the acceptance of


def build_drafters(wanted: str | Sequence[str | Drafter], model: Any, tokenizer: Any) -> dict[str, Drafter]:
    """The drafters by name."""

    def load_draft_model(name: str) -> Any:
        like: dict[str, Any] = {"dtype": str(model.dtype).removeprefix("torch."), "device": str(model.device)}
        if (Path(name) / "config.json").is_file() and not any(Path(name).glob("tokenizer*")):
            return load_model(name, **like)  # it has the target's tokenizer, or says otherwise by its vocabulary's size
        draft, theirs = load(name, **like)
        if tokenizer is not None and theirs.get_vocab() != tokenizer.get_vocab():
            return draft, theirs  # it drafts text
        return draft

    names = wanted.split(",") if isinstance(wanted, str) else _several(wanted)
    known: dict[str, Any] = {"target": getattr(model, "name_or_path", ""), "mark": lambda: fingerprint(model)}
    built: dict[str, Drafter] = {}
    for item in shipped.expand(names, **known):
        if not isinstance(item, (str, Drafter)):
            raise TypeError(f"a drafter is a name or a wager.drafters.Drafter, not a {type(item).__name__}")
        if isinstance(item, str):
            item = registry.build(item.strip(), load=load_draft_model, tokenizer=tokenizer, **known)
        if item is not None and item.name in built:
            raise ValueError(f"two drafters are called {item.name!r}; give each a name of its own")
        if item is not None:
            built[item.name] = item
    return built


def build_arms(arms: Sequence[Arm | str] | None, drafters: Mapping[str, Drafter], lengths: Sequence[int],
               trees: str | Sequence[Tree | str] | None = (), *, flat: bool = False) -> tuple[Arm, ...]:  # fmt: skip
    """Plain decoding first, then every drafter with every length, as a chain and in every tree; or the arms asked for.

    ``trees`` are shapes such as ``4x16``, for the drafters that can draft trees, as deep as the lengths that fit in;
    None: those of heads that pay where width is nearly free (``flat``), else none.
    """
    if trees is None:
        heads = [name for name, drafter in drafters.items() if drafter.trees and drafter.reads and flat]
        built = build_arms(arms, drafters, lengths)
        longest = max(arm.length for arm in built) if arms is None else 0
        return *built, *(Arm(name, depth, shape) for name in heads for depth, shape in TREES if depth <= longest)
    trees = [tree for tree in trees.split(",") if tree] if isinstance(trees, str) else _several(trees)
    if arms is None:
        lengths = [lengths] if isinstance(lengths, str) else _several(lengths)
        if not lengths or not all(is_whole(n) and n > 0 for n in lengths):
            raise ValueError(f"draft lengths are whole numbers, 1 or more, not {lengths}")
        require(max(lengths) <= LONGEST, f"a draft is at most {LONGEST:,} tokens long, not {max(lengths):,}")
        lengths = sorted(set(map(int, lengths)))
        return OFF, *(Arm(name, length) for name in drafters for length in lengths), *_trees(drafters, lengths, trees)
    require(not trees, "arms are named one by one; write a tree's among them, as 'drafter:length@4x16'")
    named = arms.split(",") if isinstance(arms, str) else _several(arms)
    given = [Arm.parse(arm.strip()) if isinstance(arm, str) else arm for arm in named]
    for arm in given:
        if not isinstance(arm, Arm):
            raise TypeError(f"an arm is written as 'drafter:length' or is a wager.core.Arm, not a {type(arm).__name__}")
        if arm.merged is not None:
            raise ValueError(f"what is merged into a draft is the policy's choice of every round: name arm {arm.alone}")
        if arm != OFF and arm.drafter not in drafters:
            raise ValueError(f"no drafter here for arm {arm}; there are {', '.join(drafters) or 'none'}")
        if arm.tree is not None:
            _check(arm.tree)
            if not drafters[arm.drafter].trees:
                raise ValueError(f"no tree can be had for arm {arm}: drafter {arm.drafter!r} drafts chains only")
    return OFF, *dict.fromkeys(arm for arm in given if arm != OFF)


def playable(arms: tuple[Arm, ...], target: Runner) -> tuple[Arm, ...]:
    """Those arms that a target can play which stands in for another: over a caller's own cache or padding."""
    chains = tuple(arm for arm in arms if arm.tree is None)
    return arms if len(chains) == len(arms) or target.trees else chains


def fit_arms(arms: Iterable[Arm], target: Runner) -> None:
    """Refuse arms with drafts or trees where the target verifies none."""
    arms = tuple(arms)
    if target.why_no_drafts and arms != (OFF,):
        cannot = f"this target verifies no drafts: {target.why_no_drafts}"
        raise ValueError(f"{cannot}; drafters='off' decodes with it one token at a time")
    tree = next((arm for arm in arms if arm.tree is not None), None)
    if tree is not None and not target.trees:
        raise ValueError(f"this target verifies chains only, so arm {tree} cannot be played; leave out the trees")


def most_merged(arms: Iterable[Arm], drafters: Mapping[str, Drafter], target: Runner) -> int:
    """Tokens of the longest proposal that may be merged into another drafter's draft; 0 where none can be."""
    drafting = [arm for arm in arms if arm.length]
    several = len({arm.drafter for arm in drafting}) > 1
    if not several or not target.trees:
        return 0
    return max((a.length for a in drafting if a.tree is None and drafters[a.drafter].cheap), default=0)


def widest(arms: Sequence[Arm], drafters: Mapping[str, Drafter], target: Runner) -> int:
    """Most tokens that a round of these arms has verified at once, the text's last included."""
    return 1 + max(arm.budget for arm in arms) + most_merged(arms, drafters, target)


def _trees(drafters: Mapping[str, Drafter], lengths: Sequence[int], trees: Sequence[Tree | str]) -> list[Arm]:
    shapes = dict.fromkeys(Tree.parse(tree.strip()) if isinstance(tree, str) else tree for tree in trees)
    for shape in shapes:
        if not isinstance(shape, Tree):
            raise TypeError(
                f"a tree is written as 'BREADTHxNODES' or is a wager.core.Tree, not a {type(shape).__name__}"
            )
    able = [name for name, drafter in drafters.items() if drafter.trees]
    if shapes and not able:
        raise ValueError(f"no drafter here drafts trees; there are {', '.join(drafters) or 'none'}, drafting chains")
    for shape in shapes:
        _check(shape)
        if lengths[0] > shape.nodes:
            raise ValueError(f"a tree {shape} is at most {shape.nodes} deep; give a length of at most that")
    return [
        Arm(name, length, shape) for name in able for shape in shapes for length in lengths if length <= shape.nodes
    ]


def _several(given: Any) -> list[Any]:
    """What was given as a list, also where it is one thing."""
    return list(given) if isinstance(given, Iterable) else [given]


def _check(tree: Tree) -> None:
    most = WIDEST_TREE - 1  # the text's last token goes along
    require(tree.nodes <= most, f"a tree has at most {most} nodes, not {tree.nodes}")
