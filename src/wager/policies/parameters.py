"""What the parameters of policies mean, in a phrase each: for `wager policies NAME` and docs/policies.md."""

# A parameter that means something else in one policy is also listed as POLICY.PARAMETER.
MEANINGS: dict[str, str] = {
    "alpha": "standard deviations added to an arm's mean",
    "qlearning.alpha": "learning rate",
    "batch_scale": "requests that count as 1 in the linear model of the batch size",
    "beta": "weight of the exploration bonus",
    "budget": "most draft tokens of a step over all requests (0: no limit)",
    "halving.budget": "rounds of exploration over all phases (0: each phase has its period)",
    "c": "weight of the further term c ln ln t in the confidence bound",
    "petc.c": "rounds of exploration, as a multiple of the logarithm of tokens",
    "cap": "most acceptance of one token that is assumed",
    "delta": "probability with which the confidence bound may fail",
    "drafter": "the drafter whose length is chosen; the first one unless given",
    "fixed.drafter": "the arm's drafter",
    "epsilon": "share of rounds that play any arm",
    "every": "rounds until drafters that do not draft read the text again",
    "gamma": "discount of later rewards",
    "discounted-ucb.gamma": "factor by which earlier rounds count less with every round",
    "meta-exp3.gamma": "share of rounds that play any arm",
    "history": "rounds that estimates are taken from",
    "lag_cost": "reward lost for each token that a drafter must catch up on after a change",
    "length": "the arm's draft length",
    "hedge.length": "draft length of every drafter (0: its longest)",
    "max_batch": "larger batches count as this one",
    "per_request": "draft tokens of a step for each request, in the mean",
    "period": "rounds of every remaining arm in a phase",
    "reward": "what is maximized",
    "tokens": "tokens of the texts to come",
    "tree": "the arm's tree, BREADTHxNODES",
    "v": "scale of the noise added to an arm's mean, in its standard deviations",
    "window": "latest rounds that count",
}


def meaning(policy: str, parameter: str) -> str:
    """The phrase for a parameter of a policy; empty for one that has none."""
    return MEANINGS.get(f"{policy}.{parameter}") or MEANINGS.get(parameter, "")
