"""Legal arms, contexts and rounds for hypothesis."""

from hypothesis import strategies as st

from wager.core import OFF, Arm, Context, Hint, PromptFeatures, Round, Tree

DRAFTERS = ("a", "b", "c")
ARMS = (OFF, *(Arm(name, length) for name in DRAFTERS for length in (1, 3, 6)), Arm("c", 4, Tree(2, 9)))

seconds = st.sampled_from([0.0, 1e-6, 0.01, 3.0]) | st.floats(0, 10)
unit = st.floats(0, 1)
features = st.builds(PromptFeatures, st.integers(1, 5000), st.floats(1, 1e6), st.lists(unit, max_size=3).map(tuple))
hints = st.dictionaries(
    st.sampled_from(DRAFTERS), st.builds(Hint, st.integers(0, 20), st.lists(unit, max_size=8).map(tuple))
)


@st.composite
def rounds(draw: st.DrawFn, arms: tuple[Arm, ...] = ARMS) -> Round:
    """Any round that may come back."""
    arm = draw(st.sampled_from(arms))
    batch = draw(st.sampled_from([1, 1, 1, 2, 7, 64]))
    drafted = draw(st.integers(0, arm.budget * batch))
    accepted = draw(st.integers(0, min(drafted, arm.length * batch)))
    emitted = draw(st.integers(1, accepted + batch))
    return Round(
        arm,
        drafted,
        accepted,
        emitted,
        batch=batch,
        rejected=draw(st.sampled_from([-1]) | st.integers(0, batch)),
        draft_seconds=draw(seconds),
        verify_seconds=draw(seconds),
        lag=draw(st.integers(0, 300)),
        lag_seconds=draw(seconds),
        overlap=draw(st.lists(unit, max_size=arm.budget).map(tuple)),
        others=draw(st.dictionaries(st.sampled_from(DRAFTERS), st.integers(0, 8))),
        repeated=draw(st.none() | st.integers(0, emitted)),
    )


@st.composite
def contexts(draw: st.DrawFn, arms: tuple[Arm, ...] = ARMS) -> Context:
    """Any context with any non-empty subset of the arms, in any order."""
    return Context(
        tuple(draw(st.lists(st.sampled_from(arms), min_size=1, unique=True))),
        batch=draw(st.sampled_from([1, 1, 2, 7, 64, 5000])),
        tokens=draw(st.integers(0, 10**6)),
        previous=draw(st.none() | st.sampled_from(arms)),
        lag=draw(st.dictionaries(st.sampled_from(DRAFTERS), st.integers(0, 500))),
        hints=draw(hints),
        prompt=draw(st.none() | features),
    )
