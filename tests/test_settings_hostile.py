"""Facts that hold for any environment: it is refused in words, and a secret never shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.settings import SettingsError
from tests.settings_help import CPU, VARIABLES, loaded

TOKEN = "hf_Zq7Zq7Zq7Zq7Zq7Zq7Zq7Zq7Zq7Zq7Zq7"
ODD_TOKEN = "s3cr3t-of-a-private-hub"


def lines_of(environ: dict[str, str]) -> list[str]:
    """The errors of an environment; none when it is taken."""
    try:
        loaded(environ)
    except SettingsError as error:
        return str(error).split("\n")
    return []


@given(
    token=st.sampled_from([TOKEN, ODD_TOKEN, f"two {ODD_TOKEN}"]),
    name=st.sampled_from(["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]),
    others=st.dictionaries(
        st.sampled_from([*VARIABLES[:-1], "BOOT_HF_TOKEN", "WORLD_SIZE", "HF_HUB_OFFLINE"]),
        st.sampled_from(["{}", "x{}x", "https://u:{}@h", "{}" * 30, " {}", "/r/{}"]),
    ),
    pasted=st.booleans(),
)
def test_a_secret_never_shows(
    token: str, name: str, others: dict[str, str], *, pasted: bool
) -> None:
    """Wherever it was pasted: into another variable, into a name, twice, or badly formed."""
    environ = {**CPU, name: token} | {
        key: text.replace("{}", token) for key, text in others.items()
    }
    if pasted:
        environ[f"BOOT_{token}"] = "1"
    outputs: list[object] = []
    try:
        settings = loaded(environ)
        outputs += [settings.public()]
        if not others:
            outputs += [repr(settings), str(settings), settings.model_dump_json()]
    except SettingsError as error:
        outputs += [str(error), repr(error), error.finding, error.problems, error.args]
        outputs += [problem.finding for problem in error.problems]
        outputs += [error.__cause__, error.__context__]
    for output in outputs:
        assert token not in str(output)
        assert token.removeprefix("two ") not in str(output)


_NAMES = (
    st.sampled_from([*VARIABLES, "WORLD_SIZE", "LOCAL_RANK", "HF_HUB_OFFLINE", "UNSLOTH_FORCE_X"])
    | st.text(max_size=20).map(lambda text: "BOOT_" + text)
    | st.text(max_size=20)
)
_VALUES = st.text(st.characters(), max_size=30) | st.sampled_from(["1", "cpu", "\udcff", "9" * 400])


@given(environ=st.dictionaries(_NAMES, _VALUES))
def test_any_environment_is_taken_or_refused_in_words(environ: dict[str, str]) -> None:
    """`os.environ` holds bytes that are no UTF-8 as lone surrogates: those must print, too."""
    for line in lines_of(environ):
        assert line.isprintable()
        assert line.encode()


@given(environ=st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(["1", "cpu", "a/b"])))
def test_what_is_taken_makes_a_plan(environ: dict[str, str]) -> None:
    if not lines_of(environ):
        assert loaded(environ).plan().profile.name == environ["BOOT_HARDWARE"]
