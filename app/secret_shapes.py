"""What secrets look like that nobody told us of. Hashes, UUIDs, names and paths look like none.

A leaf: imports nothing of the app.

Patterns stand behind a character or two without which none of a group can be, and behind needles in
lower case, one of which is in every text that the pattern matches: looking for a needle takes some
50 ns, for a pattern microseconds. What a pattern's group `keep` holds stays, all else is hidden.
"""

from __future__ import annotations

import re

SHAPES: tuple[tuple[str, tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]], ...] = (
    (
        "_",
        (
            # Hugging Face (34 characters after hf_); a folder such as hf_checkpoints is none.
            (("hf_", "api_org_"), re.compile(r"(?:hf_|api_org_)[A-Za-z0-9]{30,}")),
            (
                ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
                re.compile(r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}"),
            ),
        ),
    ),
    (
        "-",
        (
            # OpenAI, Anthropic: with capitals and digits, or a word with dashes would look alike.
            (
                ("sk-",),
                re.compile(
                    r"(?<![A-Za-z0-9])sk-(?=[a-z0-9_-]{0,99}[A-Z])(?=[A-Za-z_-]{0,99}[0-9])"
                    r"[A-Za-z0-9_-]{20,}"
                ),
            ),
            (
                ("xox", "xapp-"),
                re.compile(r"(?<![A-Za-z0-9])(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}"),
            ),
            (("glpat-",), re.compile(r"glpat-[A-Za-z0-9_-]{20,}")),
            (
                ("private key-----",),
                re.compile(
                    r"(?s)(?P<keep>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)"
                    r".*?(?:(?=-----END [A-Z ]{0,40}PRIVATE KEY-----)|\Z)"
                ),
            ),
        ),
    ),
    # Amazon, Google, and JSON Web Tokens: the base64 of `{"`, and more parts behind dots.
    ("AKIA", ((("",), re.compile(r"(?<![A-Za-z0-9])AKIA[A-Z0-9]{16}(?![A-Za-z0-9])")),)),
    ("ASIA", ((("",), re.compile(r"(?<![A-Za-z0-9])ASIA[A-Z0-9]{16}(?![A-Za-z0-9])")),)),
    ("AIza", ((("",), re.compile(r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{35}")),)),
    (
        "eyJ",
        (
            (
                ("",),
                re.compile(
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
            (("//", "\\/\\/"), re.compile(r"(?P<keep>(?:\\?/){2})[^/\s]*(?=@)")),
            (
                ("://",),
                re.compile(r"(?P<keep>://)[^/\s:@]{0,99}:(?![0-9]{1,5}/)[^\s@]{0,300}(?=@)"),
            ),
        ),
    ),
    (
        "%",  # of a URL inside another
        (
            (
                ("%2f%2f",),
                re.compile(r"(?i)(?P<keep>%2F%2F)(?:(?!%2F|%40)[^/\s]){0,300}(?=%40)"),
            ),
        ),
    ),
    (
        "=",
        (
            # Parameters of a URL, its signature among them.
            (
                ("token=", "sig=", "signature=", "secret=", "key=", "passw", "auth=", "ial="),
                re.compile(
                    r"(?i)(?P<keep>[?&;][\w.-]{0,40}?(?:token|secret|password|passwd|api[_-]?key"
                    r"|access[_-]?key|signature|sig|credential|auth)=)[^&\s#\"'<>;]+"
                ),
            ),
            # Variables as programs print them.
            (
                ("_token=", "secret=", "passw", "_key="),
                re.compile(
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
                re.compile(
                    r"(?i)(?P<keep>(?<![A-Za-z0-9])(?:password|passwd|api_?key|client_secret"
                    r"|secret_key|(?:access|auth|refresh|hf|hub|session)_token)[\"']?\s?"
                    r"(?:=|:\s?(?=[\"']))\s?[\"']?)(?!None\b)[^\s\"'<>,)]{8,}"
                ),
            ),
            # Headers of HTTP, as text and as Python shows them.
            (
                ("authorization",),
                re.compile(
                    r"(?i)(?P<keep>authorization[\"']?\s?[:=,]\s?b?[\"']?"
                    r"(?:(?:bearer|basic|token|digest)\s)?)(?:\*\*\*|[^\s\"',;]{8,})"
                ),
            ),
            (
                ("bearer",),
                re.compile(
                    r"(?i)(?P<keep>\bbearer\s)(?=[A-Za-z._~+/=-]*[0-9])[A-Za-z0-9._~+/=-]{16,}"
                ),
            ),
            (
                ("cookie", "x-"),
                re.compile(
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
                        text = shape.sub(hide, text)
                        break
    return text
