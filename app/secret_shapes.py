"""What secrets look like that nobody told us of. Hashes, UUIDs, names and paths look like none.

A leaf: imports nothing of the app.

Patterns stand behind a character or two without which none of a group can be, and behind needles in
lower case, one of which is in every text that the pattern matches: looking for a needle takes some
50 ns, for a pattern microseconds. What a pattern's group `keep` holds stays, all else is hidden.
"""

from __future__ import annotations

import re
from functools import cache

SHAPES: tuple[tuple[str, tuple[tuple[tuple[str, ...], str], ...]], ...] = (
    (
        "_",
        (
            # Hugging Face (34 characters after hf_); a folder such as hf_checkpoints is none.
            (("hf_", "api_org_"), r"(?:hf_|api_org_)[A-Za-z0-9]{30,}"),
            (
                ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
                r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}",
            ),
        ),
    ),
    (
        "-",
        (
            # OpenAI, Anthropic: with capitals and digits, or a word with dashes would look alike.
            (
                ("sk-",),
                (
                    r"(?<![A-Za-z0-9])sk-(?=[a-z0-9_-]{0,99}[A-Z])(?=[A-Za-z_-]{0,99}[0-9])"
                    r"[A-Za-z0-9_-]{20,}"
                ),
            ),
            (
                ("xox", "xapp-"),
                r"(?<![A-Za-z0-9])(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}",
            ),
            (("glpat-",), r"glpat-[A-Za-z0-9_-]{20,}"),
            (
                ("private key-----",),
                (
                    r"(?s)(?P<keep>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)"
                    r".*?(?:(?=-----END [A-Z ]{0,40}PRIVATE KEY-----)|\Z)"
                ),
            ),
        ),
    ),
    # Amazon, Google, and JSON Web Tokens: the base64 of `{"`, and more parts behind dots.
    ("AKIA", ((("",), r"(?<![A-Za-z0-9])AKIA[A-Z0-9]{16}(?![A-Za-z0-9])"),)),
    ("ASIA", ((("",), r"(?<![A-Za-z0-9])ASIA[A-Z0-9]{16}(?![A-Za-z0-9])"),)),
    ("AIza", ((("",), r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{35}"),)),
    (
        "eyJ",
        (
            (
                ("",),
                (
                    r"(?<![A-Za-z0-9_-])(?:hf_[a-z]+_)?eyJ[A-Za-z0-9_-]{8,}"
                    r"(?:\.[A-Za-z0-9_-]*){2,4}"
                ),
            ),
        ),
    ),
    (
        "@",
        (
            # Credentials of a URL; also with a slash in the password, unlike a port and a path.
            (("//", "\\/\\/"), r"(?P<keep>(?:\\?/){2})[^/\s]*(?=@)"),
            (
                ("://",),
                r"(?P<keep>://)[^/\s:@]{0,99}:(?![0-9]{1,5}/)[^\s@]{0,300}(?=@)",
            ),
        ),
    ),
    (
        "%",  # of a URL inside another
        (
            (
                ("%2f%2f",),
                r"(?i)(?P<keep>%2F%2F)(?:(?!%2F|%40)[^/\s]){0,300}(?=%40)",
            ),
        ),
    ),
    (
        "=",
        (
            # Parameters of a URL, its signature among them.
            (
                ("token=", "sig=", "signature=", "secret=", "key=", "passw", "auth=", "ial="),
                (
                    r"(?i)(?P<keep>[?&;][\w.-]{0,40}?(?:token|secret|password|passwd|api[_-]?key"
                    r"|access[_-]?key|signature|sig|credential|auth)=)[^&\s#\"'<>;]+"
                ),
            ),
            # Variables as programs print them.
            (
                ("_token=", "secret=", "passw", "_key="),
                (
                    r"(?P<keep>(?:_TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|SECRET_KEY)="
                    r"[\"']?)[^\s\"'<>]{8,}"
                ),
            ),
        ),
    ),
    (
        "",
        (
            # Arguments and JSON.
            (
                ("_secret", "secret_", "passw", "api_key", "apikey", "_token"),
                (
                    r"(?i)(?P<keep>(?<![A-Za-z0-9])(?:password|passwd|api_?key|client_secret"
                    r"|secret_key|(?:access|auth|refresh|hf|hub|session)_token)[\"']?\s?"
                    r"(?:=|:\s?(?=[\"']))\s?[\"']?)(?!None\b)[^\s\"'<>,)]{8,}"
                ),
            ),
            # Headers of HTTP, as text and as Python shows them.
            (
                ("authorization",),
                (
                    r"(?i)(?P<keep>authorization[\"']?\s?[:=,]\s?b?[\"']?"
                    r"(?:(?:bearer|basic|token|digest)\s)?)(?:\*\*\*|[^\s\"',;]{8,})"
                ),
            ),
            (
                ("bearer",),
                r"(?i)(?P<keep>\bbearer\s)(?=[A-Za-z._~+/=-]*[0-9])[A-Za-z0-9._~+/=-]{16,}",
            ),
            (
                ("cookie", "x-"),
                (
                    r"(?i)(?P<keep>(?<![A-Za-z0-9-])(?:(?:set-)?cookie"
                    r"|x-[a-z-]{0,30}(?:token|key|secret))[\"']?\s?[:,]\s?b?[\"']?)"
                    r"[^\s\"';,][^\r\n\"';]*"
                ),
            ),
        ),
    ),
)


def without_shapes(text: str, hidden: str) -> str:
    """The text with `hidden` in the place of all that looks like a secret."""

    def hide(found: re.Match[str]) -> str:
        return (found["keep"] if "keep" in found.re.groupindex else "") + hidden

    lower = text.lower()
    for gate, shapes in SHAPES:
        if gate in text:
            for needles, shape in shapes:
                for needle in needles:
                    if needle in lower:
                        text = _compiled(shape).sub(hide, text)
                        break
    return text


@cache
def _compiled(shape: str) -> re.Pattern[str]:
    """Not before it is needed: all of them together take some milliseconds."""
    return re.compile(shape)
