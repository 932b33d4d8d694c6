"""Generated objects that look like JSON Schemas, valid or not."""

from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)
WORDS = st.sampled_from(
    ["type", "properties", "items", "required", "enum", "default", "anyOf", "const", "pattern"]
)
ANY_SCHEMA = st.dictionaries(WORDS, JSON, max_size=4)
